"""Runs coroutines together."""
import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def together(works: list[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all coroutines. The first error cancels the other coroutines, and is raised."""
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except* Exception as errors:
        failure = errors
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    if failure is not None:
        raise failure
    return [task.result() for task in tasks]
