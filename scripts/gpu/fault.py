"""The search for the feature of SHOAL_CUDA_OFF that makes an output wrong."""
from collections.abc import Callable

from gpu.context import FEATURES, ONE
from gpu.report import FAILED, Result
from gpu.shell import Skip
from gpu.steps import good

TRIES = 3  # this many right runs are right
OF_SEVERAL = "p2p_product"  # changes nothing on one device
NOT_REPRODUCED = f"not reproduced in {TRIES} runs (intermittent, or too slow)"
HOPELESS = "wrong whatever is switched off"


class NoTime(Exception):
    """Less than the limit of a run is left: it is not started, because its output would say nothing."""


def search(why_wrong: Callable, features: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """The features to switch off, and the reason if the search failed. All go off if only the time for one was missing."""
    def right(off: tuple[str, ...]) -> bool:
        return not any(why_wrong(off) for _ in range(TRIES))

    untried, all_right = list(features), False
    try:
        if right(()):
            return (), NOT_REPRODUCED
        if not right(features):
            return (), HOPELESS
        all_right = True
        while untried and not right((untried[0],)):
            del untried[0]
        off = tuple(untried[:1]) or features
        return (off, "") if why_wrong(()) else ((), f"wrong, but not again after it was right without {','.join(off)}")
    except NoTime:
        return features if all_right else (), f"wrong; no time left to try {', '.join(untried) or 'all of them again'}"


def find(context, of: str, devices: str, cases: list[tuple], diagnose: Callable | None = None) -> Result:
    """For the step `of`, which failed. Later steps run with the faulty features switched off. `cases`: a wrong run's name, a
    function that repeats it with more features off (empty if it is right; it may raise NoTime), and its features off."""
    if not cases:
        if of in context.doubts:
            raise Skip(context.doubts[of])
        return good("not needed")
    before, problems = context.off, []
    for i, (name, why_wrong, off) in enumerate(cases):
        known = {*context.off, *off, *([OF_SEVERAL] if devices == ONE else [])}
        off, problem = search(why_wrong, tuple(one for one in FEATURES if one not in known))
        if problem == NOT_REPRODUCED and context.off != before:
            continue  # the features found before were its fault, too
        context.off = tuple(one for one in FEATURES if one in (*context.off, *off))
        if problem:
            problems.append(f"{name}: {problem}")
        if problem == HOPELESS and diagnose:
            problems += diagnose(i)
        if problem not in ("", NOT_REPRODUCED):
            break
    off = tuple(name for name in context.off if name not in before)
    right = [f"right with SHOAL_CUDA_OFF={','.join(off)}, which later steps run with"] if off else []
    if problems:
        return Result("", FAILED, detail="; ".join([*problems, *right]), data={"off": off})
    context.doubts.pop(of, None)
    return good("; ".join(["wrong with all features", *right]), off=off)
