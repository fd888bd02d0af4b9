"""Counters and histograms for Prometheus, with the names of llama-server (llamacpp:) and vLLM (vllm:)."""
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from .backend import Backend
    from .generation import Generation

RATE_SECONDS = 5.0  # rates cover the last seconds
TIME_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120)


class Metrics:
    def __init__(self, backend: "Backend") -> None:
        self._backend = backend
        self.registry = CollectorRegistry()
        self.registry.register(self)  # type: ignore[arg-type]
        labels = {"labelnames": ["model_name"], "registry": self.registry, "buckets": TIME_BUCKETS}
        first = Histogram("vllm:time_to_first_token_seconds", "Time from a request to its first token.", **labels)
        between = Histogram("vllm:inter_token_latency_seconds", "Time between two tokens of an answer.", **labels)
        whole = Histogram("vllm:e2e_request_latency_seconds", "Time from a request to the end of its answer.", **labels)
        self._first, self._between, self._whole = (one.labels(backend.name) for one in (first, between, whole))
        self._prompt_seconds = self._answer_seconds = 0.0
        self._prompt_tokens = self._cached_tokens = self._answer_tokens = self._longest = 0
        self._finished = 0
        self._mean_seconds = 1.0
        self._samples: deque[tuple[float, int, int]] = deque()

    def note_tokens(self, seconds: float, count: int, is_first: bool) -> None:
        """Records tokens that arrived `seconds` after the previous tokens, or after the request."""
        if is_first:
            self._first.observe(seconds)
        else:
            for _ in range(count):
                self._between.observe(seconds / count)

    def count(self, generation: "Generation") -> None:
        """Adds a finished or cancelled request."""
        seconds = time.monotonic() - generation.begin
        self._mean_seconds += 0.1 * (seconds - self._mean_seconds)
        self._whole.observe(seconds)
        self._finished += len(generation.answers)
        for answer in generation.answers:
            self._longest = max(self._longest, len(generation.prompt) + len(answer.tokens))
            if not answer.first:
                continue
            self._prompt_seconds += answer.first - generation.begin
            self._answer_seconds += answer.last - answer.first
            self._prompt_tokens += len(generation.prompt) - answer.cached_tokens
            self._cached_tokens += answer.cached_tokens
            self._answer_tokens += len(answer.tokens)

    def mean_seconds(self) -> float:
        """Mean time of the latest requests."""
        return self._mean_seconds

    def rates(self) -> tuple[float, float]:
        """Prompt tokens and generated tokens per second, since the call before RATE_SECONDS."""
        stats, now = self._backend.engine.stats(), time.monotonic()
        self._samples.append((now, stats["prompt_tokens"], stats["generated_tokens"]))
        while len(self._samples) > 2 and now - self._samples[1][0] > RATE_SECONDS:
            self._samples.popleft()
        begin, prompts, generated = self._samples[0]
        seconds = now - begin
        if seconds <= 0:
            return 0.0, 0.0
        return (stats["prompt_tokens"] - prompts) / seconds, (stats["generated_tokens"] - generated) / seconds

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        stats = self._backend.engine.stats()
        counters = {
            "llamacpp:prompt_tokens": ("Prompt tokens that were computed.", self._prompt_tokens),
            "llamacpp:prompt_tokens_cached": ("Prompt tokens that were in the cache.", self._cached_tokens),
            "llamacpp:prompt_seconds": ("Time of prompts.", self._prompt_seconds),
            "llamacpp:tokens_predicted": ("Generated tokens.", self._answer_tokens),
            "llamacpp:tokens_predicted_seconds": ("Time of generation.", self._answer_seconds),
            "llamacpp:n_decode": ("Steps of the engine.", stats["steps"]),
            "llamacpp:spec_decode_num_draft_tokens": ("Guessed tokens.", stats["drafted_tokens"]),
            "llamacpp:spec_decode_num_accepted_tokens": ("Guessed tokens that were right.", stats["accepted_tokens"]),
            "vllm:prompt_tokens": ("Prompt tokens, with cached tokens.", self._prompt_tokens + self._cached_tokens),
            "vllm:generation_tokens": ("Generated tokens.", self._answer_tokens),
            "vllm:num_preemptions": ("Requests that lost their memory for a while.", stats["preemptions"]),
            "shoal:requests": ("Finished and cancelled requests.", self._finished),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(name, text, value)
        running, waiting, used = stats["running"], stats["waiting"], stats["used_tokens"]
        gauges: dict[str, tuple[str, Any]] = {
            "llamacpp:n_tokens_max": ("Largest number of tokens of a request.", self._longest),
            "llamacpp:prompt_tokens_seconds": ("Prompt tokens per second.", divide(self._prompt_tokens, self._prompt_seconds)),
            "llamacpp:predicted_tokens_seconds": ("Generated tokens per second and request.",
                                                  divide(self._answer_tokens, self._answer_seconds)),
            "llamacpp:requests_processing": ("Running requests.", running),
            "llamacpp:requests_deferred": ("Waiting requests.", waiting),
            "llamacpp:n_busy_slots_per_decode": ("Generated tokens per step.", divide(stats["generated_tokens"], stats["steps"])),
            "vllm:num_requests_running": ("Running requests.", running),
            "vllm:num_requests_waiting": ("Waiting requests.", waiting),
            "vllm:kv_cache_usage_perc": ("Share of the cache that running requests use, from 0 to 1.",
                                         divide(used, self._backend.info["cache_tokens"])),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value)


def divide(number: float, divisor: float) -> float:
    return number / divisor if divisor > 0 else 0.0
