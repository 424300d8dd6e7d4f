"""Chat templates: what they make, and what they cannot do."""

from __future__ import annotations

import json

import pytest

from kakeya.config.text import TextLimits
from kakeya.errors import Refused
from kakeya.verifying.chat import ChatTemplate, load_template

MESSAGES = [{"role": "user", "content": "Hi <b> 한"}]


def render(source, messages=MESSAGES, *, limits=None, **options) -> str:
    template = ChatTemplate(source, limits or TextLimits())
    options = {"bos_token": "<s>", "eos_token": "</s>", "wall": lambda: 0.0} | options
    return template.render(messages, **options)


def test_a_template_sees_messages_tokens_and_the_prompt_flag():
    source = (
        "{{ bos_token }}{% for m in messages %}\n[{{ m.role }}] {{ m['content'] }}{{ eos_token }}"
        "\n{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
    )
    assert render(source) == "<s>[user] Hi <b> 한</s>\nA:"
    assert render(source, add_generation_prompt=False).endswith("</s>\n")


def test_blocks_leave_no_blank_lines():
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"


def test_tojson_is_plain_json():
    assert render("{{ messages | tojson }}") == json.dumps(MESSAGES, ensure_ascii=False)
    assert render("{{ {'b': 1, 'a': 2} | tojson(indent=1) }}") == '{\n "b": 1,\n "a": 2\n}'


def test_the_date_is_the_callers():
    day = 86_400.0
    assert render("{{ strftime_now('%Y') }}", wall=lambda: 400 * day) == "1971"


def test_loop_controls_and_training_marks_are_understood():
    source = "{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}"
    assert render(source) == "1"
    assert render("a{% generation %}b{{ eos_token }}{% endgeneration %}c") == "ab</s>c"


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.at_all }}", "no attribute"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ messages + 1 }}", "concatenate"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% include 'passwd' %}", "refuses"),
        ("{{ 'x' * 1000000000000 }}", "steps"),
        ("{{ 10 ** 1000000000 }}", "steps"),
        ("{{ '%1000000000d' % 1 }}", "% formatting"),
        ("{{ range(1000000000000) | list }}", "steps"),
        ("{% for a in range(2000) %}{% for b in range(2000) %}{% endfor %}{% endfor %}", "steps"),
    ],
)
def test_a_template_that_fails_or_goes_too_far_is_refused(source, named):
    with pytest.raises(Refused) as caught:
        render(source)
    assert caught.value.status == "INVALID_ARGUMENT"
    assert named in caught.value.why
    assert len(caught.value.why) < 300


def test_a_rendering_over_the_limit_is_refused():
    limits = TextLimits(max_rendered_chars=10)
    with pytest.raises(Refused, match="over 10 characters"):
        render("{% for m in range(20) %}ab{% endfor %}", limits=limits)


def test_the_file_wins_over_the_config_and_default_over_other_names(tmp_path):
    limits = TextLimits()
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert load_template(tmp_path, {}, limits) is None
    assert load_template(tmp_path, {"chat_template": "C"}, limits).source == "C"
    assert load_template(tmp_path, {"chat_template": named}, limits).source == "D"
    (tmp_path / "chat_template.jinja").write_text("F")
    assert load_template(tmp_path, {"chat_template": "C"}, limits).source == "F"


@pytest.mark.parametrize("source", ["{% for %}", "x" * 300_000])
def test_a_broken_or_huge_template_is_refused_at_load(tmp_path, source):
    with pytest.raises(Refused, match="INVALID_ARGUMENT"):
        load_template(tmp_path, {"chat_template": source}, TextLimits())
