"""Reads a rendered page as a browser's parser would, to ask what is really in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

__all__ = ["Element", "parse"]

VOID = {"meta", "link", "img", "br", "hr", "input", "wbr"}


@dataclass
class Element:
    """One element with its attributes, children and the text directly in it."""

    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)

    def all(self, tag: str | None = None, **attributes: str) -> list[Element]:
        """Every element below, in order, that has the tag and the attributes (`klass` means one of the classes)."""
        found = []
        for child in self.children:
            classes = child.attributes.get("class", "").split()
            wanted = {name: value for name, value in attributes.items() if name != "klass"}
            if (
                tag in (None, child.tag)
                and all(child.attributes.get(name) == value for name, value in wanted.items())
                and ("klass" not in attributes or attributes["klass"] in classes)
            ):
                found.append(child)
            found += child.all(tag, **attributes)
        return found

    @property
    def text(self) -> str:
        """All text below, with white space collapsed."""
        return " ".join("".join(self._pieces()).split())

    def _pieces(self) -> list[str]:
        pieces, children = [], iter(self.children)
        for part in self.parts:
            pieces += next(children)._pieces() if part is CHILD else [part]
        return pieces


CHILD = "\x00child\x00"


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("root", {})
        self.open = [self.root]
        self.mismatched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        self.open[-1].parts.append(CHILD)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag != self.open[-1].tag:
            self.mismatched.append(f"</{tag}> closes <{self.open[-1].tag}>")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].parts.append(data)


def parse(page: str) -> Element:
    """The page as a tree. Raises AssertionError when an element is left open or closed by another's end tag."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    assert not parser.mismatched, parser.mismatched
    assert parser.open == [parser.root], [element.tag for element in parser.open]
    return parser.root
