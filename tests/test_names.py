"""The rules of names: modules and public classes are noun phrases, class names are unique, and the glossary is true."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT

ROOT = ROOT / "trt_tui"

PRONOUNS = """all another any anything both each either everything few he here her him his i it its itself many me most
much my neither nobody none nothing one other others our she some somebody something such that their them there these
they this those us we what whatever when where which who whom whose why you your""".split()
PREPOSITIONS = """about above across after against along alongside amid among around at before behind below beneath
beside besides between beyond by despite down during except for from in inside into like near of off on onto out outside
over past per since through throughout till to toward under underneath until up upon via with within without""".split()
ADVERBS = """alike alone already also always apart away else elsewhere enough ever forth how however later maybe never
next not now often once only otherwise perhaps quite rather really so soon still then thus together too twice very well
yet
""".split()
IRREGULAR_PARTICIPLES = """become begun born bound broken brought built bought caught chosen come cut done drawn driven
eaten fallen fed felt fought found forgotten frozen given gone got grown had heard held hidden hit kept known laid led
left lent let lost made meant met paid put read run said seen sent set shown shut sold spent split spread stood stolen
struck sworn swept taken taught thought thrown told understood won worn woven written""".split()
ADJECTIVES_AND_PARTICIPLES_IN_ING = """being coming doing giving going having holding keeping making putting saying
seeing telling""".split()
NOUNS = {*"cut feed hit lead read run runs set split spread bed seed speed need thread head embed shed".split()}
"""Words that are nouns as well."""

_FORBIDDEN = {*PRONOUNS, *PREPOSITIONS, *ADVERBS, *IRREGULAR_PARTICIPLES, *ADJECTIVES_AND_PARTICIPLES_IN_ING} - NOUNS


_TERMS = {"gated"}
"""Words of the glossary: the package builds the gated graph."""


def _is_forbidden(name: str) -> bool:
    """Returns True if a name is one word that cannot name a thing."""
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
    word = name.lower()
    return len(words) == 1 and (word in _FORBIDDEN or len(word) > 4 and word.endswith("ed") and word not in NOUNS)


@cache
def _modules() -> dict[Path, ast.Module]:
    """Returns the syntax of all modules of the program."""
    return {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


@pytest.fixture(scope="module", autouse=True)
def _released():
    yield
    _modules.cache_clear()


def _classes() -> dict[str, list[str]]:
    """Returns the modules of each public class at the top level of a module, by its name."""
    classes = defaultdict(list)
    for path, module in _modules().items():
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(str(path.relative_to(ROOT)))
    return classes


def _glossary() -> list[list[str]]:
    """Returns the cells of the rows of the glossary."""
    text = (ROOT / "README.md").read_text()
    section = re.search(r"^## Glossary\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert section, "trt_tui/README.md has no glossary"
    rows = [line.strip().strip("|").split(" | ") for line in section[1].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_no_module_is_named_by_a_participle_or_a_function_word():
    names = {path.stem if path.stem != "__init__" else path.parent.name for path in _modules()}
    assert len(names) > 200
    assert not sorted(filter(_is_forbidden, names - _TERMS))


def test_no_public_class_is_named_by_a_participle_or_a_function_word():
    assert not sorted(filter(_is_forbidden, _classes()))


def test_a_public_class_name_is_unique():
    assert not {name: modules for name, modules in _classes().items() if len(modules) > 1}


def test_a_module_name_repeats_only_on_several_levels():
    """One concept may have a module on each level of the program; two modules of one package never share a name."""
    places = defaultdict(list)
    for path in _modules():
        if path.stem not in ("__init__", "__main__"):
            parts = path.relative_to(ROOT).parts
            places[path.stem, parts[0]].append(path)
    assert not {key: paths for key, paths in places.items() if len(paths) > 2}


def _described_names(docstring: str, section: str) -> list[str]:
    """Returns the names that a section of a docstring, such as Args, describes."""
    found = re.search(rf"^{section}:\n((?:    .*\n|\n)*)", f"{docstring}\n", re.M)
    heads = re.findall(r"^    (\w+(?:, \w+)*):", found[1], re.M) if found else []
    return [name for head in heads for name in head.split(", ")]


def _parameters(function: ast.AST) -> set[str]:
    return {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}


def test_docstrings_describe_arguments_and_attributes_that_exist():
    """A class may describe what it inherits; names that it assigns or defines anywhere count as its own."""
    nodes = [(path, node) for path, module in _modules().items() for node in ast.walk(module)]
    names_by_class, wrong = {}, []
    for _, node in nodes:
        if isinstance(node, ast.ClassDef):
            names = names_by_class.setdefault(node.name, set())
            for item in ast.walk(node):
                names |= {
                    getattr(item, field)
                    for field in ("attr", "id", "name")
                    if isinstance(getattr(item, field, None), str)
                }
    for path, node in nodes:
        if isinstance(node, ast.FunctionDef):
            wrong += [
                (path.name, node.name, name)
                for name in _described_names(ast.get_docstring(node) or "", "Args")
                if name not in _parameters(node)
            ]
        elif isinstance(node, ast.ClassDef):
            bases = {item.id for base in node.bases for item in ast.walk(base) if isinstance(item, ast.Name)}
            known = set().union(*(names_by_class.get(name, set()) for name in (node.name, *bases)))
            known |= {name for item in node.body if isinstance(item, ast.FunctionDef) for name in _parameters(item)}
            docstring = ast.get_docstring(node) or ""
            described = [*_described_names(docstring, "Args"), *_described_names(docstring, "Attributes")]
            wrong += [(path.name, node.name, name) for name in described if name not in known]
    assert not wrong


def test_the_glossary_names_what_exists():
    defined = {
        node.name
        for module in _modules().values()
        for node in ast.walk(module)
        if isinstance(node, (ast.ClassDef, ast.FunctionDef))
    }
    wrong = {
        term: [name for name in re.findall(r"`([A-Z][a-z]\w*)[`.]", code) if name not in defined]
        for term, meaning, code in _glossary()
        if meaning
    }
    assert len(wrong) == len(_glossary()) > 50
    assert not {term: names for term, names in wrong.items() if names}
