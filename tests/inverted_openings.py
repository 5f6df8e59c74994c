"""Sentences that keep their subject waiting: ``python tests/inverted_openings.py`` lists and counts them.

It reads the Markdown, the docstrings and the comments of the repository. Tables, headings, programs and
examples hold no sentences here. ``tests/test_inverted_openings.py`` bounds how many there are.
"""

import ast
import itertools
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BE = r"(?:is|are|was|were)"
AUXILIARY = rf"(?:{BE}|does|do|did|has|have|had|can|could|will|would|must|may)"
VERB = (
    rf"(?:{AUXILIARY}|belongs?|comes?|costs?|counts?|depends?|differs?|fails?|gives?|goes|has|holds?|leaves|lies|"
    "makes?|matters?|means|meets?|needs?|stands?|stays|takes|travels?|works)"
)
PRONOUN = "(?:it|they|there|these|this|that|he|she|we|you|one|each|both|all|some|which)"
QUESTION = "what|which|whom?|how|why"
PLACE = "In|On|At|By|From|To|For|With|Under|Behind|Beside|Between|Among|Beyond|Below|Above"
PATTERNS = {
    "Of ...": "Of ",
    "Whose ...": "Whose ",
    # With one verb it is a label, such as "How many seeds there were".
    "What is gained is": rf"(?:(?:{PLACE}) )?(?i:{QUESTION})\b[^?:]* {VERB}\b[^?:]* {VERB}\b[^?]*$",
    "To score all takes": rf"To \w[^,:]* (?:{BE}|takes|costs|needs|would)\b",
    "Nor does it": rf"(?:So|Nor|Neither|Hardly|Never|Not|Only|Such) (?:\w+ )?{AUXILIARY} ",
    "Measured is": rf"(?:[A-Z]\w+ed|Kept|Left|Lost|Known|Given|Gone|Made|Drawn) {BE} ",
    "In front stands": rf"(?:{PLACE}) (?:\w+ )?(?!{PRONOUN} )[\w`]+ (?:{BE}|stands?|lies?|comes?|belongs?) ",
}


def paragraphs_of_markdown(text):
    text = re.sub(r"^```.*?^```", "\n", text, flags=re.M | re.S)
    text = re.sub(r"^(?:\||#|<|!\[| {4,}>>>|:::).*", "\n", text, flags=re.M)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)  # a link is its words
    return re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text)


def paragraphs_of_comments(text):
    """Its comments, those below each other as one."""
    lines = enumerate(text.splitlines())
    marks = ((row, re.search(r"(?:^|\s)(?:#|//) (.*)", line)) for row, line in lines)
    found = [(row, mark.start(), mark[1]) for row, mark in marks if mark]
    for _, block in itertools.groupby(enumerate(found), lambda item: (item[1][0] - item[0], item[1][1])):
        yield " ".join(text for _, (_, _, text) in block)


def paragraphs_of_python(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            docstring = re.sub(r"^ *>>>.*(?:\n.+)*", "\n", ast.get_docstring(node), flags=re.M)
            yield from re.split(r"\n\s*\n|(?:^|\n) *(?:[*-] |[\w`*, ]+: ?(?=\n|[A-Z`]))", docstring)
    yield from paragraphs_of_comments(text)


def sentences_of(paragraph):
    words = re.sub(r"\s+", " ", paragraph).strip()
    for sentence in re.split(r"(?<=[.!?])\)? (?=[\[(\"*_`]*[A-Z])", words):
        if len(sentence.split()) > 2:
            yield sentence.strip("*_ ")


def repository():
    """Pairs of a file and its sentences."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    readers = dict.fromkeys((".cc", ".h"), paragraphs_of_comments)
    readers |= {".md": paragraphs_of_markdown, ".py": paragraphs_of_python}
    for path in map(Path, listed.splitlines()):
        if path.suffix in readers:
            paragraphs = readers[path.suffix]((ROOT / path).read_text(encoding="utf-8"))
            yield path, [*itertools.chain(*map(sentences_of, paragraphs))]


def opening_of(sentence):
    """The kind of inverted opening, or None."""
    return next((name for name, pattern in PATTERNS.items() if re.match(pattern, sentence)), None)


def main():
    number, counts = 0, dict.fromkeys(PATTERNS, 0)
    for path, sentences in repository():
        number += len(sentences)
        for sentence in sentences:
            if opening := opening_of(sentence):
                counts[opening] += 1
                print(f"{path}: {sentence}")
    for name, count in counts.items():
        print(f"{count:5} {name}")
    inverted = sum(counts.values())
    print(f"{inverted} of {number} sentences, {1000 * inverted / number:.1f} in 1,000")


if __name__ == "__main__":
    main()
