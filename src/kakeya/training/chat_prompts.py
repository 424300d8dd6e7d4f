"""Conversations' first words, made by rule: what a chat model is asked to learn from its answers.

No list of prompts is at hand without a network, so they are put together: questions and tasks
over words kept here, and tasks on functions and paragraphs of Python's standard library.  Words
and files are split by the hash of each, so what is held out was never asked about in training.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kakeya.training.corpus import Source, read_sources, standard_library

# Shares of the kinds of prompt.
SHARES = {"ask": 0.5, "write": 0.2, "code": 0.18, "edit": 0.12}
# Of 256 parts of the topics; files are split as the corpus is.
HELD_OUT_TOPICS = 40
MAX_PIECE_CHARS, MIN_PIECE_CHARS = 700, 60

TOPICS = """photosynthesis; the water cycle; gravity; black holes; volcanoes; earthquakes; the moon;
the solar system; evolution; vaccines; antibiotics; the immune system; the heart; the
brain; sleep; dreams; memory; stress; exercise; yoga; meditation; running a marathon;
swimming; cycling; chess; football; basketball; tennis; the Olympic Games; ancient Rome;
ancient Egypt; the Middle Ages; the French Revolution; the Industrial Revolution; the
Renaissance; World War II; the Cold War; democracy; capitalism; inflation; the stock
market; saving money; budgeting; taxes; insurance; starting a small business; marketing;
customer service; leadership; teamwork; time management; procrastination; public
speaking; job interviews; writing a resume; learning a language; reading books; poetry;
Shakespeare; science fiction; classical music; jazz; the piano; the guitar; painting;
photography; film making; architecture; bridges; skyscrapers; trains; airplanes;
electric cars; bicycles; ships; the Internet; computers; programming; Python; databases;
algorithms; sorting; recursion; machine learning; neural networks; artificial
intelligence; robots; smartphones; social media; online privacy; passwords; encryption;
climate change; renewable energy; solar panels; wind turbines; nuclear power; recycling;
plastic waste; deforestation; rain forests; deserts; oceans; coral reefs; whales;
dolphins; sharks; penguins; elephants; lions; dogs; cats; horses; birds; bees;
butterflies; spiders; dinosaurs; trees; roses; gardening; growing tomatoes; composting;
cooking pasta; baking bread; making coffee; tea; chocolate; cheese; pizza; sushi;
vegetarian food; healthy breakfasts; vitamins; sugar; salt; water; air; light; sound;
magnetism; electricity; atoms; the periodic table; chemical reactions; acids; prime
numbers; fractions; geometry; the Pythagorean theorem; probability; statistics;
calculus; negative numbers; the number pi; maps; mountains; rivers; islands; Paris;
London; Tokyo; New York; Africa; South America; Antarctica; Japan; India; China; Brazil;
Canada; Australia; travelling alone; camping; hiking; packing a suitcase; moving to a
new city; making friends; friendship; happiness; courage; kindness; honesty; patience;
forgiveness; anger; fear; grief; growing old; raising children; teaching; homework;
universities; libraries; museums; hospitals; nurses; farmers; pilots; astronauts;
detectives; pirates; dragons; a lonely lighthouse; a lost key; a talking cat; a rainy
day; the first snow; a secret door; a long journey; an old clock; the last train; a
small village; a birthday party; holidays; weddings; superstitions; mythology;
philosophy; ethics; free will; time; space travel; Mars; telescopes; satellites; the
weather; clouds; rainbows; thunderstorms; snow; the seasons; calendars; clocks; money;
trade; law; human rights; voting; newspapers; advertising; fashion; shoes; houses;
furniture; tools; paper; glass; steel; gold; diamonds; soap; mirrors; candles; fire"""

ASK = (
    "What is {a}?",
    "What are the most important facts about {a}?",
    "Tell me about {a}.",
    "Explain {a} to a ten year old child.",
    "Explain {a} in simple words.",
    "How does one get started with {a}?",
    "Give me five tips about {a}.",
    "Why does {a} matter?",
    "What are the advantages and disadvantages of {a}?",
    "What is the history of {a}?",
    "What is the difference between {a} and {b}?",
    "Compare {a} and {b} in a few sentences.",
    "List ten words that have to do with {a}.",
    "Give three examples that have to do with {a}.",
    "What do {a} and {b} have in common?",
    "Can you recommend something to someone who is interested in {a}?",
    "I want to learn more about {a}. Where should I begin?",
    "What are common misunderstandings about {a}?",
    "Describe {a} in one paragraph.",
    "What questions should I ask an expert on {a}?",
    "Summarize what is known about {a} as a bulleted list.",
    "How are {a} and {b} connected?",
)
WRITE = (
    "Write a short story about {a}.",
    "Write a poem about {a}.",
    "Write an email to a friend about {a}.",
    "Write a short speech on {a}.",
    "Write a dialogue between two people who talk about {a}.",
    "Write an introduction for an essay on {a} and {b}.",
    "Make a plan for a one week course on {a}.",
    "Write a letter to the editor about {a}.",
    "Write a product description that has to do with {a}.",
    "Write three quiz questions about {a}, with their answers.",
    "Give me a catchy title and an outline for a blog post about {a}.",
    "Write a review of a book about {a}.",
    "Write a story that begins with {a} and ends with {b}.",
)
CODE = (
    "Explain what this Python code does:\n\n```python\n{code}\n```",
    "Add comments to this code:\n\n```python\n{code}\n```",
    "Write a docstring for this function:\n\n```python\n{code}\n```",
    "Find possible bugs in this code:\n\n```python\n{code}\n```",
    "Write a Python function named {name}. Its task: {task}",
    "Write a small Python example that does this: {task}",
    "Write a unit test for this function:\n\n```python\n{code}\n```",
)
EDIT = (
    "Summarize this text in two sentences:\n\n{text}",
    "Rewrite this text in simpler words:\n\n{text}",
    "Correct the spelling in this text and repeat it:\n\n{text}",
    "Repeat this text word for word:\n\n{text}",
    "Turn this text into a bulleted list:\n\n{text}",
    "Quote the most important sentence of this text and explain it:\n\n{text}",
    "Rename the function in this code to {other} and print all of it:\n\n```python\n{code}\n```",
    "Add a docstring to this function and print all of it:\n\n```python\n{code}\n```",
    "Rewrite this code with type hints and print all of it:\n\n```python\n{code}\n```",
)


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the library: its source, and what its docstring's first line says it does."""

    name: str
    code: str
    task: str


@dataclass(frozen=True, slots=True)
class Material:
    """What prompts of one side of the split are made of."""

    topics: Sequence[str]
    functions: Sequence[Function]
    paragraphs: Sequence[str]


def topics(*, held_out: bool) -> list[str]:
    return [t for t in " ".join(TOPICS.split()).split("; ") if _is_held_out(t) == held_out]


def read_material(*, held_out: bool) -> Material:
    """Takes a few seconds: the library's files are parsed."""
    functions: list[Function] = []
    paragraphs: list[str] = []
    for source in read_sources(standard_library(), held_out=held_out):
        if source.path.startswith(("test/", "idlelib/")):
            continue
        lines = source.text.splitlines()
        for node in _defined(source):
            text = inspect.cleandoc(ast.get_docstring(node) or "")
            parts = [part.strip() for part in text.split("\n\n")]
            paragraphs += [part for part in parts if _fits(part) and ">>>" not in part]
            if isinstance(node, ast.FunctionDef):
                code = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                if _fits(code):
                    functions.append(Function(node.name, code, parts[0]))
    return Material(topics(held_out=held_out), functions, paragraphs)


def make_prompt(material: Material, *, seed: int, number: int) -> str:
    """The prompt of this number; depends on seed and number alone."""
    rng = np.random.default_rng((seed, 7, number))
    kind = rng.choice(list(SHARES), p=list(SHARES.values()))
    forms = {"ask": ASK, "write": WRITE, "code": CODE, "edit": EDIT}[kind]
    form = forms[rng.integers(len(forms))]
    a, b = (material.topics[i] for i in rng.choice(len(material.topics), 2, replace=False))
    function = material.functions[int(rng.integers(len(material.functions)))]
    while "{task}" in form and not function.task:
        function = material.functions[int(rng.integers(len(material.functions)))]
    return form.format(
        a=a,
        b=b,
        name=function.name,
        code=function.code,
        task=function.task,
        text=material.paragraphs[int(rng.integers(len(material.paragraphs)))],
        other=material.functions[int(rng.integers(len(material.functions)))].name,
    )


def _is_held_out(topic: str) -> bool:
    return hashlib.sha256(topic.encode()).digest()[0] < HELD_OUT_TOPICS


def _fits(text: str) -> bool:
    return MIN_PIECE_CHARS <= len(text) <= MAX_PIECE_CHARS


def _defined(source: Source) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    try:
        tree = ast.parse(source.text)
    except (SyntaxError, ValueError):
        return  # a few of the library's files are wrong on purpose
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node


__all__ = ["SHARES", "Function", "Material", "make_prompt", "read_material", "topics"]
