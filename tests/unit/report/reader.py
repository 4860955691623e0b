"""Reads a page as a browser does, and lists all tags and attributes that our pages may have."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "wbr", "link", "img", "input", "hr"}
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "id", "class", "role", "scope", "tabindex",
    "href", "aria-label", "aria-labelledby", "data-name", "width", "height", "x", "y", "x1", "x2",
    "y1", "y2", "d", "text-anchor", "overflow",
}  # fmt: skip
TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "div", "section",
    "ul", "li", "nav", "a", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "span",
    "code", "details", "summary", "footer", "figure", "figcaption", "svg", "desc", "text", "line",
    "rect", "g", "path", "wbr",
}  # fmt: skip


class Reader(HTMLParser):
    """Tags, attributes and texts of a page; fails on a tag that is not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())
