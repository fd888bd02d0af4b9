"""Forwards messages of the C++ parts to the logger "shoal": warnings as warnings, other messages as information."""
import logging

from . import _shoal

LOG = logging.getLogger("shoal")


def forward_messages() -> None:
    _shoal.redirect_messages(log_text)


def log_text(text: str) -> None:
    for line in text.splitlines():
        line = line.removeprefix("shoal: ").strip()
        if line.startswith("warning: "):
            LOG.warning("%s", line.removeprefix("warning: "))
        elif line:
            LOG.info("%s", line)
