"""Routers that read the kind of routing from the keys of the model file. A class of transformers supports only one kind
of routing."""

import functools

GATES = {1: lambda logits: logits.softmax(-1), 2: lambda logits: logits.sigmoid()}


class Routing:
    """The routing of a file. `normalised`: whether the weights of the selected experts are normalised if the file
    has no key for it. `best`: the score of a group is the sum of the `best` highest scores in the group."""

    def __init__(self, source, normalised=False, best=2):
        self.best = best
        self.gate = GATES[source.key("expert_gating_func", 1)]
        self.count, self.used = source.key("expert_count"), source.key("expert_used_count")
        self.groups = source.key("expert_group_count", 1)
        self.groups_used = source.key("expert_group_used_count", 1)
        self.normalised = source.key("expert_weights_norm", normalised)
        self.scale = source.key("expert_weights_scale", 1.0)

    def route(self, router, x, bias=None):
        """Replaces `forward` of a router in transformers. Some routers get the bias as an argument. The bias affects
        only the selection of experts."""
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
        """Replaces the routers in layers of transformers. These routers must have a bias."""
        for layer in layers:
            layer.mlp.gate.forward = functools.partial(self.route, layer.mlp.gate)
