"""Maps Einsum of one or two operands to sums, transposes and a matrix product.

bhqd,bhkd->bhqk    batch b h, sum d: [b h, q, d] times [b h, d, k]
"""

import math

from from_onnx.node import Unmapped
from from_onnx.rows import product, summed


def reordered(m, value, letters, wanted):
    return m.transpose(value, [letters.index(letter) for letter in wanted])


def without(m, value, letters, dropped):
    """Sums over the axes `dropped`."""
    axes = [axis for axis, letter in enumerate(letters) if letter in dropped]
    kept = "".join(letter for letter in letters if letter not in dropped)
    return (summed(m, value, axes, False) if axes else value), kept


def einsum(m, node):
    equation = node.attr("equation").replace(" ", "")
    left, arrow, out = equation.partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or len(terms) > 2 or any(len(set(term)) != len(term) for term in (*terms, out)):
        raise Unmapped(f"attribute equation={equation} has no counterpart",
                       "use one or two operands, an explicit result, and no ellipsis or repeated letter")  # fmt: skip
    others = [*terms[1:], *terms[:1]] if len(terms) == 2 else [""]
    values = []
    for value, term, other in zip(node.inputs, terms, others):
        values.append(without(m, value, term, set(term) - set(other) - set(out)))
    if len(values) == 1:
        return reordered(m, *values[0], out)
    (a, first), (b, second) = values
    batch = [letter for letter in first if letter in second and letter in out]
    inner = [letter for letter in first if letter in second and letter not in out]
    rows, columns = ([one for one in term if one not in batch + inner] for term in (first, second))
    sizes = dict(zip(first, a.shape)) | dict(zip(second, b.shape))

    def merged(value, letters, *groups):
        value = reordered(m, value, letters, sum(groups, []))
        return m.reshape(value, [math.prod(sizes[letter] for letter in group) for group in groups])

    result = product(m, merged(a, first, batch, rows, inner), merged(b, second, batch, inner, columns))
    letters = batch + rows + columns
    return reordered(m, m.reshape(result, [sizes[letter] for letter in letters]), letters, out)


MAPPINGS = {"Einsum": einsum}
