"""MkDocs hook: a page of the reference for each public package, of whatever its ``__all__`` names."""

from pathlib import Path

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]


def public_packages():
    """``{package: its public names that are no package themselves}``, read from the source, not imported."""
    top = griffe.load("tfxc", search_paths=[ROOT], allow_inspection=False)
    # A function hides the module that it lies in, if they have one name.
    modules = {name: top[name] for name in top.exports if top[name].is_module}
    shown = {f"tfxc.{name}": module for name, module in modules.items() if name not in module.members}
    packages = {"tfxc": top} | shown
    return {name: sorted(_public(package)) for name, package in packages.items()}


def _public(module):
    """Paths, below the module, of its public functions and classes."""
    for name in module.exports or [name for name, member in module.members.items() if member.is_public]:
        member = module[name]
        if not member.is_module and (module.exports or not member.is_alias):
            yield name
        elif member.is_module and name in member.members:  # a function in a module of its own name
            yield f"{name}.{name}"


def on_config(config):
    """Adds the pages to the navigation."""
    pages = [{name: _path(name)} for name in public_packages()]
    config.nav.append({"Reference": pages})


def on_files(files, config):
    """Adds the pages themselves."""
    for package, names in public_packages().items():
        text = f"# {package}\n\n::: {package}\n    options: {{members: false, show_root_heading: false}}\n\n"
        text += "\n".join(f"::: {package}.{name}\n" for name in names)
        files.append(File.generated(config, _path(package), content=text))
    return files


def _path(package):
    return f"reference/{package.rpartition('.')[2]}.md"
