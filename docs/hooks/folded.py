"""MkDocs hook: Markdown inside of ``<details>`` is rendered, as GitHub does it."""


def on_page_markdown(markdown, **kwargs):
    return markdown.replace("<details>", '<details markdown="1">')
