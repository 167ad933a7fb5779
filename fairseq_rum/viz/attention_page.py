"""A page that shows what summaries copied: HTML in one file, without scripts or anything loaded."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from fairseq_rum.data.recorded_summaries import RecordedSummary

_NAMED = 3
_SHOWN = 0.01
"""What rounds to less than this is left out."""

_STYLE = """
:root { color-scheme: light dark; --ink: 32 33 36; --paper: 255 255 255; --line: 218 220 224;
  --soft: 105 110 118; --copy: 255 176 32; --cover: 26 115 232; }
@media (prefers-color-scheme: dark) { :root { --ink: 226 228 232; --paper: 24 26 30;
  --line: 64 68 76; --soft: 150 156 166; --copy: 140 80 0; --cover: 120 170 255; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 90rem; padding: 1rem; color: rgb(var(--ink));
  background: rgb(var(--paper)); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.35rem; margin: 0 0 .5rem; }
h2 { font-size: 1.05rem; margin: 0; }
h3 { font-size: .95rem; margin: 0 0 .4rem; }
article { border-top: 1px solid rgb(var(--line)); padding: 1rem 0; }
.runs { display: grid; gap: 1.25rem; margin-top: .75rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.run { min-width: 0; }
.note, .reference { color: rgb(var(--soft)); font-size: .875rem; }
.reference { margin: .25rem 0 0; }
.source { margin: .6rem 0 0; font-size: .925rem; line-height: 1.75; }
bdi { color: rgb(var(--ink)); border-radius: .2rem; padding: .05rem .1rem; }
.s { background: rgb(var(--copy) / var(--c, 0));
  box-shadow: inset 0 -.17rem rgb(var(--cover) / var(--v, 0)); }
.summary { display: flex; flex-wrap: wrap; gap: .15rem .1rem; margin: 0; }
.w { display: inline-flex; flex-direction: column; align-items: center; max-width: 100%; }
.w bdi { background: rgb(var(--copy) / var(--c, 0)); }
.w small { font-size: .66rem; line-height: 1.1; color: rgb(var(--soft)); padding: 0 .15rem; }
"""


@dataclass(frozen=True)
class Example:
    """An example by several runs.

    Attributes:
        title: what it is called.
        reference: None if it isn't known.
        summaries: by the name of the run.
    """

    title: str
    reference: Optional[str]
    summaries: Mapping[str, RecordedSummary]


def attention_page(examples: Sequence[Example], title: str) -> str:
    """The page.

    Words of a summary have p_gen under them, and a background as strong as they are copied. In the
    source the background says how much of a word was copied, and the line under it how much it was
    attended to. All texts are text, whatever they contain.

    Args:
        examples: in their order; the runs of each are side by side where there is room.
        title: of the page.

    Returns:
        HTML. It loads nothing, runs nothing, and forbids both to itself.
    """
    body = "\n".join(_example(example) for example in examples)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>{_text(title)}</h1>
<p class="note">Under each word of a summary is p<sub>gen</sub>, the probability that the model
generates a word instead of copying one. <bdi class="s" style="--c:0.90">Background</bdi>: how much
of the word was copied, in the summary and at its place in the source.
<bdi class="s" style="--v:0.90">Line</bdi>: coverage, how much all words of the summary together
attended to that place. Point at a word for its numbers.</p>
</header>
<main>
{body}
</main>
</body>
</html>
"""


def _example(example: Example) -> str:
    reference = ""
    if example.reference is not None:
        reference = f'<p class="reference">Reference: {_text(example.reference)}</p>\n'
    runs = "\n".join(_run(name, summary) for name, summary in example.summaries.items())
    return (
        f"<article>\n<h2>{_text(example.title)}</h2>\n{reference}"
        f'<div class="runs">\n{runs}\n</div>\n</article>'
    )


def _run(name: str, record: RecordedSummary) -> str:
    copied = record.copied
    words = [
        f'<span class="w">{_word("", word, c=share)}<small>{p_gen:.2f}</small></span>'
        for word, p_gen, share in zip(record.summary, record.p_gen, copied.sum(1))
    ]
    places = []
    for place, word in enumerate(record.source):
        shares = copied[:, place]
        coverage, share = float(record.coverage[place]), float(shares.sum())
        notes = [f"coverage {coverage:.2f}"] if coverage >= _SHOWN else []
        best = [t for t in (-shares).argsort(kind="stable")[:_NAMED] if shares[t] >= _SHOWN]
        notes += [f"copied {shares[t]:.2f} as word {t + 1}" for t in best]
        if notes:
            places.append(_word("s", word, ", ".join(notes), c=share, v=coverage))
        else:
            places.append(_text(word))
    share = 100 * (1 - record.p_gen).mean() if len(record.p_gen) else 0.0
    return (
        f'<section class="run">\n<h3>{_text(name)} <span class="note">copies {share:.0f}%, '
        f"coverage loss {record.coverage_loss:.2f}</span></h3>\n"
        f'<p class="summary">{" ".join(words)}</p>\n'
        f'<p class="source">{" ".join(places)}</p>\n</section>'
    )


def _word(kind: str, word: str, note: str = "", **strengths: float) -> str:
    """A word with the strengths of its background and line, 0 to 1."""
    shown = {n: min(float(value), 1.0) for n, value in strengths.items() if value >= _SHOWN}
    style = ";".join(f"--{name}:{value:.2f}" for name, value in shown.items())
    attributes = {"class": kind, "style": style, "title": note}
    given = "".join(f' {name}="{value}"' for name, value in attributes.items() if value)
    return f"<bdi{given}>{_text(word)}</bdi>"


def _text(text: str) -> str:
    """Text as HTML: escaped, and without what HTML cannot have, such as control characters."""
    return html.escape(re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", "\ufffd", text))
