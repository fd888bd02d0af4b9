"""Finds marks in text that arrives in pieces. White space inside and around marks is ignored, because models write it
differently from their templates."""
import re
from collections.abc import Iterable

NO, PARTLY = -1, -2
# Parts of a mark that may be control tokens.
TAG = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]{2,}\]|｜DSML｜|\]<\]\w+\[>\[")


def match_mark(text: str, place: int, mark: str) -> int:
    """The end of `mark` in the text at `place`, PARTLY if the text ends inside of the mark, or NO."""
    for character in mark:
        if character.isspace():
            continue
        while place < len(text) and text[place].isspace():
            place += 1
        if place == len(text):
            return PARTLY
        if text[place] != character:
            return NO
        place += 1
    return place


def match_any(text: str, place: int, marks: Iterable[str]) -> int:
    """The largest result of match_mark() for several marks. PARTLY counts more than NO."""
    results = [match_mark(text, place, mark) for mark in marks if mark.strip()]
    ends = [result for result in results if result >= 0]
    return max(ends) if ends else PARTLY if PARTLY in results else NO


def held_back(text: str, marks: Iterable[str]) -> int:
    """The number of characters at the end of the text that may begin a mark."""
    most = 0
    for mark in marks:
        for size in range(min(len(text), len(mark) - 1), most, -1):
            if text.endswith(mark[:size]):
                most = size
                break
    return most


def tags_in(text: str) -> list[str]:
    return TAG.findall(text)
