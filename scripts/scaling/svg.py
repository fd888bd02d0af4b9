"""Makes matplotlib's SVG several times smaller without a visible change: tenths of a point, no metadata, no names
without a reference, and the font once. The same input gives the same bytes."""

import re
import xml.etree.ElementTree as xml

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
FONT = re.compile(r"font-family:[^;]*;?\s*")
NUMBER = re.compile(r"-?\d+\.\d+")
RECTANGLE = re.compile(r"M ([\d.-]+) ([\d.-]+) L ([\d.-]+) \2 L \3 ([\d.-]+) L \1 \4 z")
NUMBERS = {"d", "x", "y", "width", "height", "transform", "points"}


def shorter(match: re.Match) -> str:
    text = f"{float(match[0]):.1f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def is_group(element: xml.Element) -> bool:
    return element.tag == f"{{{SVG}}}g"


def flattened(parent: xml.Element) -> None:
    """Groups that say nothing give way to what is in them."""
    children = list(parent)
    for child in children:
        flattened(child)
        if is_group(child) and not child.attrib:
            at = list(parent).index(child)
            parent.remove(child)
            for place, inner in enumerate(child):
                parent.insert(at + place, inner)


def smaller(element: xml.Element, used: set[str]) -> None:
    attributes = element.attrib
    if attributes.get("id") not in used:
        attributes.pop("id", None)
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    for name in NUMBERS & set(attributes):
        attributes[name] = " ".join(NUMBER.sub(shorter, attributes[name]).split())
    if "d" in attributes:
        attributes["d"] = shorter_path(attributes["d"])
    if "style" in attributes:
        style = FONT.sub("", attributes["style"]).strip().rstrip(";")
        attributes["style"] = style.replace(": ", ":").replace("; ", ";")
    if element.tag not in (f"{{{SVG}}}text", f"{{{SVG}}}tspan", f"{{{SVG}}}style"):
        element.text = None
    element.tail = None


def shorter_path(path: str) -> str:
    """Rectangles and lines without what is the same in both points."""
    return RECTANGLE.sub(r"M\1 \2H\3V\4H\1z", path)


def classes(root: xml.Element) -> str:
    """Styles that are there several times, written once; the CSS of them."""
    counts: dict[str, int] = {}
    for element in root.iter():
        if style := element.get("style"):
            counts[style] = counts.get(style, 0) + 1
    names = {style: f"s{place}" for place, style in enumerate(style for style, count in counts.items() if count > 2)}
    for element in root.iter():
        if (style := element.get("style")) in names:
            del element.attrib["style"]
            element.set("class", names[style])
    return "".join(f".{name}{{{style}}}" for style, name in names.items())


def compact(text: str) -> str:
    for prefix, name in (("", SVG), ("xlink", XLINK)):
        xml.register_namespace(prefix, name)
    root = xml.fromstring(text)
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    used = set(re.findall(r"#([\w-]+)", text))
    for element in root.iter():
        smaller(element, used)
    flattened(root)
    style = next(root.iter(f"{{{SVG}}}style"), None)
    if style is not None:
        style.text = f"{style.text or ''}text{{font-family:'DejaVu Sans',Arial,Helvetica,sans-serif}}{classes(root)}"
    out = xml.tostring(root, encoding="unicode", short_empty_elements=True).replace(" />", "/>")
    return re.sub(r"(</g>|</text>)(?=<)", r"\1\n", out) + "\n"
