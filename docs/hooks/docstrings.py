"""Griffe extension: brings the sections of Keras-style docstrings into a form that Griffe renders."""

import re

import griffe


class KerasSections(griffe.Extension):
    """``Example`` and loose ``>>>`` become code, ``Call arguments`` a list; a class shows all its source."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring is not None:
            obj.docstring.value = rewrite(obj.docstring.value)

    def on_class(self, *, cls, **kwargs):
        if "__init__" in cls.members:  # the entry of a class shows its constructor's
            cls["__init__"].lineno, cls["__init__"].endlineno = cls.lineno, cls.endlineno


def rewrite(text):
    """The docstring with sections that Griffe knows."""
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.M)
    # A doctest that stands outside of a section.
    text = re.sub(r"^>>> .*(?:\n.+)*", _example, text, count=1, flags=re.M)
    return re.sub(r"^(Call arguments|Reference):((?:\n(?: {4}.*)?)+)", _section, text, flags=re.M)


def _example(match):
    return "Examples:\n" + "".join(f"    {line}\n" for line in match[0].splitlines())


def _section(match):
    """The entries of a section, ``name: text`` with deeper lines continuing them, as a list."""
    body = re.sub(r"^ {4}(\w+): ", r"* `\1`: ", match[2], flags=re.M)
    body = re.sub(r"^ {4}", "", body, flags=re.M)
    return f"**{match[1]}:**\n{body}"
