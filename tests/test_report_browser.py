"""The report's page in a real headless Chromium: it opens without a word of complaint, sorts, filters, changes colours,
can be used by keyboard alone, and fits a telephone.

Needs Debian's package `chromium` (or another Chromium, named by CHROMIUM) and playwright, which drives it.
"""

import functools
import os
import re
import shutil
import tempfile
import unittest
from pathlib import Path

import pytest
from absl.testing import absltest, parameterized
from report_runs import make_run
from test_report_page import EVIL, page_of

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@functools.cache
def page_file() -> Path:
    place = Path(tempfile.mkdtemp())
    texts = [EVIL if i % 5 == 0 else ("positive", "negative")[i % 2] for i in range(60)]
    runs = [
        make_run(place / "s1", "sentiment", seed=1, limit=60),
        make_run(place / "evil", "sentiment", seed=2, limit=60, predictions=texts),
        make_run(place / "low", "entailment", seed=1, learning_rate=1e-4, limit=30),
    ]
    path = place / "report.html"
    path.write_text(page_of(runs, drawn=True, size="small")[1], encoding="utf-8")
    return path


@pytest.mark.slow
class BrowserTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not CHROMIUM:
            raise unittest.SkipTest("no Chromium here: apt-get install --no-install-recommends chromium")
        try:
            from playwright.sync_api import sync_playwright
        except ImportError:
            raise unittest.SkipTest("no playwright here: python -m pip install playwright") from None
        cls.driver = sync_playwright().start()
        cls.addClassCleanup(cls.driver.stop)
        cls.browser = cls.driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        cls.addClassCleanup(cls.browser.close)

    def open(self, width=1280, theme="light", **options):
        context = self.browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, **options)
        self.addCleanup(context.close)
        context.set_default_timeout(60_000)
        page, self.complaints, complain = context.new_page(), [], lambda said: self.complaints.append(str(said))
        page.on("console", lambda message: complain(message.text))
        page.on("pageerror", complain)
        page.on("request", lambda request: None if "report.html" in request.url else complain(request.url))
        page.goto(page_file().as_uri())
        return page

    @parameterized.product(width=(1280, 400), theme=("light", "dark"))
    def test_it_opens_without_complaint_and_fits(self, width, theme):
        page = self.open(width, theme)
        self.assertEqual(self.complaints, [])
        self.assertEqual(page.evaluate("document.documentElement.scrollWidth"), width)
        self.assertIsNone(page.evaluate("window.hacked ?? null"))
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        self.assertEqual(ground, "rgb(255, 255, 255)" if theme == "light" else "rgb(18, 23, 28)")
        # Every plot has been drawn, with something in it.
        sizes = page.evaluate(
            "[...document.querySelectorAll('figure img')].map((i) => i.naturalWidth && i.getBoundingClientRect().height)"
        )
        self.assertGreater(min(sizes), 100)

    def test_a_header_sorts_up_and_down_by_keyboard(self):
        page = self.open()
        table = page.locator("#runs table")
        values = lambda: [float(v) for v in table.locator("tbody td:nth-child(4)").evaluate_all(
            "(cells) => cells.map((cell) => cell.dataset.value)")]  # fmt: skip
        head = table.locator("thead th").nth(3)
        head.locator("button").focus()
        page.keyboard.press("Enter")
        self.assertEqual(head.get_attribute("aria-sort"), "ascending")
        self.assertEqual(values(), sorted(values()))
        page.keyboard.press("Space")
        self.assertEqual(head.get_attribute("aria-sort"), "descending")
        self.assertEqual(values(), sorted(values(), reverse=True))
        for _ in range(2):  # cells without a value stay last
            table.locator("thead th").nth(4).locator("button").click()
            empty = [cell == "–" for cell in table.locator("tbody td:nth-child(5)").all_inner_texts()]
            self.assertEqual(empty, sorted(empty))
        names = table.locator("thead th").nth(0)
        names.locator("button").click()
        self.assertEqual(head.get_attribute("aria-sort"), "none")
        words = table.locator("tbody th").all_inner_texts()
        self.assertEqual(words, sorted(words))

    def test_filters_show_what_they_say(self):
        page = self.open()
        count = lambda: tuple(map(int, re.findall(r"\d+", page.locator("#examples-count").inner_text())))
        items = page.locator("#examples-list li")
        self.assertEqual(count(), (150, 150))
        self.assertEqual(items.count(), 25)
        page.locator("#examples-more").focus()
        page.keyboard.press("Enter")
        self.assertEqual(items.count(), 50)
        # The keyboard goes on where the new ones begin.
        self.assertTrue(page.evaluate("document.activeElement === document.querySelectorAll('#examples-list li')[25]"))
        page.locator("#filter-task").select_option("entailment")
        self.assertEqual(count(), (30, 150))
        page.locator("#filter-task").select_option("")
        page.locator("#filter-verdict").select_option("invalid")
        page.locator("#filter-run").select_option("evil")
        self.assertEqual(count()[0], 12)
        self.assertEqual(set(items.locator(".verdict").all_inner_texts()), {"invalid"})
        page.locator("#filter-text").fill("window.hacked")
        self.assertEqual(count()[0], 12)
        self.assertIn("<img src=x onerror=window.hacked=1>", items.first.inner_text())
        self.assertIsNone(page.evaluate("window.hacked ?? null"))
        page.locator("#filter-text").fill("no such text")
        self.assertEqual((count()[0], items.count()), (0, 0))

    def test_the_keyboard_is_enough(self):
        page = self.open()
        page.keyboard.press("Tab")
        focused = lambda what: page.evaluate(f"document.activeElement.{what}")
        self.assertEqual(focused("className"), "skip")
        self.assertGreaterEqual(focused("getBoundingClientRect().left"), 0)
        self.assertEqual(page.evaluate("getComputedStyle(document.activeElement).outlineStyle"), "solid")
        page.keyboard.press("Enter")
        self.assertEqual(focused("id"), "main")
        words = page.locator("#runs details.words")
        self.assertFalse(words.locator("dl").is_visible())
        words.locator("summary").focus()
        page.keyboard.press("Enter")
        self.assertTrue(words.get_by_text("not all rows were scored").is_visible())
        nameless = page.evaluate(
            """[...document.querySelectorAll('button, select, input, a, summary')].filter((e) => !e.hidden &&
               !(e.textContent.trim() || e.getAttribute('aria-label') || (e.labels && e.labels.length))).length"""
        )
        self.assertEqual(nameless, 0)

    def test_without_scripts_the_tables_are_there(self):
        page = self.open(java_script_enabled=False)
        self.assertEqual(page.locator("#scores tbody tr").count(), 2)
        self.assertIn("filtered by a script", page.locator("#examples").inner_text())

    def test_on_paper_it_is_black_on_white_in_dark_too(self):
        page = self.open(theme="dark")
        page.emulate_media(media="print", color_scheme="dark")
        self.assertEqual(page.evaluate("getComputedStyle(document.body).backgroundColor"), "rgb(255, 255, 255)")
        self.assertFalse(page.locator("nav").is_visible())


if __name__ == "__main__":
    absltest.main()
