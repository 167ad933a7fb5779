"""The page of `fairseq-rum attn-vis` in a real browser, at two widths: `make soak` runs it."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from fairseq_rum.data.recorded_summaries import RecordedSummary
from fairseq_rum.viz.attention_page import Example, attention_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = (400, 1400)
PAYLOAD = "<script>parent.document.body.dataset.hacked=1</script><img/src=x/onerror=alert(1)>"

# The page is shown in a frame of each width. It runs no script itself; its parent measures it.
HARNESS = """<!DOCTYPE html><body>{frames}<pre id="result"></pre><script>
addEventListener("load", () => {{
  const result = [...document.querySelectorAll("iframe")].map((frame) => {{
    const page = frame.contentDocument, box = (e) => e.getBoundingClientRect();
    return {{
      scripts: page.querySelectorAll("script, img").length,
      overflow: page.documentElement.scrollWidth - frame.contentWindow.innerWidth,
      lefts: [...page.querySelectorAll(".run")].map((e) => box(e).left),
      tops: [...page.querySelectorAll(".run")].map((e) => box(e).top),
      background: getComputedStyle(page.querySelector("header .s")).backgroundColor,
      text: page.body.innerText,
    }};
  }});
  document.getElementById("result").textContent = JSON.stringify(result);
}});
</script></body>"""


def page():
    rng = np.random.default_rng(1)
    source = [PAYLOAD, *(f"word{i}" for i in range(300)), "un" + "brokenly" * 30]
    summary = ["word3", PAYLOAD, *(f"word{i}" for i in range(50, 70))]
    attention = rng.dirichlet(np.full(len(source), 0.05), len(summary))
    record = RecordedSummary(0, source, summary, rng.uniform(size=len(summary)), attention)
    runs = {"LEAD": record, "RUM": record}
    return attention_page([Example("Example 0", f"a {PAYLOAD} reference", runs)], "A page")


@pytest.mark.soak
def test_in_a_browser(tmp_path):
    """Nothing runs, nothing sticks out, runs are stacked on a phone and side by side on a desk."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser ({', '.join(BROWSERS)}); on Debian: apt install chromium")
    content = html.escape(page())
    frames = "".join(
        f'<iframe width="{width}" height="900" style="border:0" srcdoc="{content}"></iframe>'
        for width in WIDTHS
    )
    (tmp_path / "harness.html").write_text(HARNESS.format(frames=frames), encoding="utf-8")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1500,2000",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom",
        (tmp_path / "harness.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "data-hacked" not in done.stdout
    (found,) = re.findall(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    narrow, wide = json.loads(html.unescape(found))
    for seen in (narrow, wide):
        assert seen["scripts"] == 0 and seen["overflow"] <= 0
        assert seen["text"].count(PAYLOAD) == 5, "the reference, and twice in each run"
        assert seen["background"] not in ("rgba(0, 0, 0, 0)", "transparent")
    assert narrow["lefts"][0] == narrow["lefts"][1] and narrow["tops"][0] < narrow["tops"][1]
    assert wide["tops"][0] == wide["tops"][1] and wide["lefts"][0] < wide["lefts"][1]
