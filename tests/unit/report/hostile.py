"""Texts that try to be more than text, for every writer."""

from __future__ import annotations

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "![pixel](https://example.org/x.png)",
    "https://example.org/phish",
    "www.example.org",
    "@maintainer please merge",
    "#1 GH-2",
    "| fake | row |",
    "```\nfake\n```",
    "</details>",
    "**PASS** __PASS__ ~~FAIL~~ $x$",
    "1. list",
    "# heading",
    "- item",
    "> quote",
    "&lt;script&gt;",
    "a\u202eb\u200b\x1b[31mred\x07",
]
