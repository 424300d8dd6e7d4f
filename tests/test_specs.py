"""Specs and tests are held to one another."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.spec_tables import rule_ids

TESTS = Path(__file__).parent


def cited() -> dict[str, list[str]]:
    """Rule ids in `@pytest.mark.spec(…)` marks, with the tests that carry them."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.spec":
                for arg in node.args:
                    assert isinstance(arg, ast.Constant)
                    found.setdefault(str(arg.value), []).append(path.name)
    return found


def test_every_rule_is_cited_by_a_test():
    assert sorted(set(rule_ids()) - set(cited())) == []


def test_every_citation_names_a_rule():
    known = rule_ids()
    assert {rule: where for rule, where in cited().items() if rule not in known} == {}
