"""Routers for models whose files define the routing. The classes of transformers support only one kind for each model."""

import functools

GATES = {1: lambda logits: logits.softmax(-1), 2: lambda logits: logits.sigmoid()}


class Routing:
    """`normalised`: whether the weights of chosen experts are normalised, unless a key says otherwise. `best`: number of a
    group's experts whose scores decide the choice of the group."""

    def __init__(self, source, normalised=False, best=2):
        self.best = best
        self.gate = GATES[source.key("expert_gating_func", 1)]
        self.count, self.used = source.key("expert_count"), source.key("expert_used_count")
        self.groups = source.key("expert_group_count", 1)
        self.groups_used = source.key("expert_group_used_count", 1)
        self.normalised = source.key("expert_weights_norm", normalised)
        self.scale = source.key("expert_weights_scale", 1.0)

    def route(self, router, x, bias=None):
        """Like `forward` of transformers' routers, some of which get a bias as an argument. The bias affects only the
        choice."""
        bias = router.e_score_correction_bias if bias is None else bias
        logits = x.view(-1, x.shape[-1]) @ router.weight.T
        scores = self.gate(logits)
        choice = (scores + bias).reshape(-1, self.groups, self.count // self.groups)
        if self.groups > 1:
            best = choice.topk(self.best, dim=-1).values.sum(-1)
            left_out = best.argsort(-1, descending=True)[:, self.groups_used :]
            choice = choice.scatter(1, left_out[..., None].expand(-1, -1, choice.shape[-1]), float("-inf"))
        ids = choice.flatten(1).topk(self.used, dim=-1).indices
        chosen = scores.gather(1, ids)
        if self.normalised:
            chosen = chosen / chosen.sum(-1, keepdim=True)
        return logits, chosen * self.scale, ids

    def put(self, layers):
        """Puts the router into layers of transformers whose routers have a bias."""
        for layer in layers:
            layer.mlp.gate.forward = functools.partial(self.route, layer.mlp.gate)
