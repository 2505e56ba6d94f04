"""The page in a browser: it loads without complaint, and what can be clicked does what it says."""

from pathlib import Path

import pytest

from softnce.lab.experiment.claims import Claim, Finding
from softnce.lab.report import drawing
from softnce.lab.report.charts import Figure, Heat, Level, Line, Panel, Points
from softnce.lab.report.page import Headline, Part, Section, Table, build, remarks

COLUMN = ["9.5 ± 0.1", "62.1 ± 0.3", "–", "+7 [−2, +9]", "−3.0", "1,024", "1e-05"]
ASCENDING = ["−3.0", "1e-05", "+7 [−2, +9]", "9.5 ± 0.1", "62.1 ± 0.3", "1,024", "–"]
CLAIMS = [
    Claim("distillation", "It is of use in distillation.", "Conclusions", "left to future work", "distillation"),
    Claim("small-batch-drop", "It falls behind at small batches.", "Figure 3, left", "−4.21 points", "noise-samples"),
]

LONG = "a cell of words, not of numbers, that is too long for a column"

pytestmark = pytest.mark.slow  # a browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One study with every kind of block; no study has to run for it."""
    lines = [
        Line.of_loss("nll", [1, 2, 3], [1.0, 2.0, 3.0], [0.5, 1.5, 2.5], [1.5, 2.5, 3.5]),
        Line.of_loss("info-nce", [1, 2, 3], [3.0, 2.0, 1.0]),
        Points.of_loss("soft-ce", [1, 2], [2.0, 2.5]),
        Level("limit", 1.5),
    ]
    heat = Heat(["1", "2"], ["a", "b"], [[0.1, 0.9], [0.5, None]], [["x", "y"], ["z", ""]], 0, 1)
    figure = Figure("everything", "All.", [Panel("(a)", "x", "y", lines), Panel("(b)", "rate", "size", [heat])])
    drawn = Figure("map", "Drawn.", [Panel("", "", "", [Points("p", [0, 1], [1, 0])], bare=True)], interactive=False)
    wide = Table(
        ["loss", "score", *"abcdefghij"], [[f"loss {i}", v, *"0123456789"] for i, v in enumerate(COLUMN)], "T."
    )
    words = Table(["said", "of"], [[LONG, "toys"]])
    section = Section(
        "Toys",
        "They work.",
        ["A paragraph.", figure, wide, words, drawn],
        ["By hand."],
        Headline(1, "Toys are the main result.", "everything"),
    )
    findings = {"small-batch-drop": Finding("−3.9 ± 0.4 points (a; b); and more", "toys, 20 seeds", "reproduced")}
    directory = tmp_path_factory.mktemp("page")
    for block in (figure, drawn):
        drawing.save(block, directory / "figures", prefix="noise-samples-")
    build([Part("noise-samples", section, findings, 3, 0.1, "2026-01-01", "v")], CLAIMS, directory / "index.html")
    return directory / "index.html"


@pytest.fixture
def opened(browser, page):
    """The page, freshly loaded on a wide light screen, its first figure in sight."""
    browser.resize(1200)
    browser.prefer("light")
    browser.open(page.as_uri())
    browser.run("until(() => window.Plotly)")  # each chart is drawn when it comes in sight
    browser.run("document.querySelector('figure').scrollIntoView()")
    browser.run("until(() => document.querySelectorAll('.main-svg').length >= 4)")
    return browser


def traces(browser) -> dict[str, bool]:
    """Whether each named trace of the first chart is drawn."""
    return browser.run("""Object.fromEntries(
        document.querySelector('.chart').data.map(trace => [trace.name, trace.visible !== false]))""")


def cells(browser, column: int) -> list[str]:
    return browser.run(f"""[...document.querySelector('#noise-samples table').tBodies[0].rows]
        .map(row => row.cells[{column}].textContent.trim())""")


def test_loads_without_complaint_and_from_nowhere_else(opened):
    assert opened.errors == []
    loaded = opened.run("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert [name for name in loaded if not name.startswith(("data:", "blob:"))] == []
    assert opened.run("getComputedStyle(document.querySelector('img.drawn')).display") == "none"


def test_the_page_opens_with_a_verdict_and_a_chart(opened):
    opening = opened.run("document.querySelector('.opening').textContent")
    assert opening == "Of 1 claim tested here: 1 reproduced. Toys are the main result."
    assert opened.run("document.querySelector('main section').id") == "opening"
    assert opened.run("document.querySelectorAll('#opening .chart').length") == 2


def test_claims_are_folded_by_verdict_and_those_not_run_are_left_out(opened):
    groups = opened.run("""[...document.querySelectorAll('#claims > details.claims')]
        .map(group => [group.dataset.verdict, group.open])""")
    assert groups == [["reproduced", False]]
    rows = opened.run("""Object.fromEntries([...document.querySelectorAll('#claims tbody tr')]
        .map(row => [row.dataset.claim, [...row.cells].map(cell => cell.textContent)]))""")
    assert list(rows) == ["small-batch-drop"]
    claim, paper, ours, study = rows["small-batch-drop"]
    assert "Figure 3, left" in claim
    assert "−4.21" in paper
    assert ours == "−3.9 ± 0.4 points (a; b)toys, 20 seedsmore numbersand more"
    assert study == "noise-samples"
    assert "1 more claim has no results" in opened.run("document.getElementById('claims').textContent")
    assert opened.run("document.querySelectorAll('#claims ol li').length") == len(remarks())


def test_commands_can_be_copied(opened):
    opened.run("document.querySelector('button.copy').click()")
    opened.run("until(() => ['copied', 'selected'].includes(document.querySelector('button.copy').textContent))")
    command = opened.run("document.querySelector('.command code').textContent")
    assert command == "softnce study noise-samples --preset paper"
    shown = opened.run("document.querySelector('.command').textContent")
    assert shown.startswith("With the paper preset: ")  # the results may be of another one
    assert opened.errors == []


@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_is_cut_off(opened, width):
    opened.resize(width)
    opened.run("document.querySelectorAll('details').forEach(details => details.open = true)")
    opened.run(f"until(() => document.documentElement.scrollWidth <= {width})")
    cut = opened.run("""[...document.querySelectorAll('nav a, nav button, h2, p, summary, .legend button')]
        .map(e => [e, e.getBoundingClientRect()])
        .filter(([e, box]) => e.offsetParent && (box.right > innerWidth || box.left < 0))
        .map(([e]) => e.textContent)""")
    assert cut == []


def test_a_phone_shows_answers_and_unfolds_figures(opened):
    opened.resize(390)
    shown = "document.querySelector('#noise-samples figure').checkVisibility()"
    opened.run(f"until(() => !{shown})")
    assert opened.run("document.querySelector('#noise-samples .summary').checkVisibility()")
    opened.run("document.querySelector('#noise-samples details.study > summary').click()")
    opened.run(f"until(() => {shown})")
    opened.resize(1200)
    opened.run("document.querySelector('#noise-samples details.study').open = false")
    opened.resize(390)
    opened.resize(1200)
    opened.run(f"until(() => {shown})")  # never folded on a wide screen, where nothing unfolds it


def test_a_loss_is_switched_off_and_on_everywhere(opened):
    opened.run("document.querySelector('button[data-loss=nll]').click()")
    assert traces(opened) == {"NLL": False, "InfoNCE": True, "soft target cross-entropy": True}
    assert opened.run("document.querySelector('button[data-loss=nll]').getAttribute('aria-pressed')") == "false"
    opened.run("document.querySelector('button[data-loss=nll]').click()")
    assert all(traces(opened).values())
    assert opened.errors == []


def test_a_series_is_switched_off_in_its_figure(opened):
    opened.run("document.querySelector('.legend button[data-name=InfoNCE]').click()")
    assert traces(opened) == {"NLL": True, "InfoNCE": False, "soft target cross-entropy": True}
    shapes = "document.querySelector('.chart').layout.shapes.length"
    assert opened.run(shapes) == 1
    opened.run("document.querySelector('.legend button[data-name=limit]').click()")
    assert opened.run(shapes) == 0


def test_sorting_knows_numbers_with_a_spread(opened):
    header = "document.querySelectorAll('#noise-samples th')[1]"
    assert opened.run(f"{header}.getAttribute('aria-sort')") == "none"
    opened.run(f"{header}.querySelector('button').click()")
    assert cells(opened, 1) == ASCENDING
    assert opened.run(f"{header}.getAttribute('aria-sort')") == "ascending"
    opened.run(f"{header}.querySelector('button').click()")
    assert cells(opened, 1) == [*reversed(ASCENDING[:-1]), "–"], "what is missing stays last"
    opened.run(f"{header}.querySelector('button').click()")
    assert cells(opened, 1) == COLUMN


def test_sorting_by_keyboard_and_by_words(opened):
    opened.run("document.querySelectorAll('#noise-samples th')[0].querySelector('button').focus()")
    opened.press("Enter")
    opened.press("Enter")
    assert cells(opened, 0) == [f"loss {i}" for i in reversed(range(7))]


def test_downloads_are_files_with_content(opened, page):
    links = opened.run("[...document.querySelectorAll('.files a[download]')].map(a => a.getAttribute('href'))")
    endings = [Path(link).suffix for link in links]
    assert endings == [".png", ".svg", ".pdf", ".csv"] * 3
    starts = [(page.parent / link).read_bytes()[:5] for link in links]
    assert starts == [b"\x89PNG\r", b"<?xml", b"%PDF-", b"panel"] * 3
    assert "NLL,2,2.0,1.5,2.5" in (page.parent / links[3]).read_text()


def test_light_and_dark(opened):
    background = "getComputedStyle(document.body).backgroundColor"
    text = "document.querySelector('.chart').layout.font.color"
    assert (opened.run(background), opened.run(text)) == ("rgb(255, 255, 255)", "#1c1f23")
    opened.prefer("dark")
    opened.run(f"until(() => {text} === '#e6e9ed')")
    assert opened.run(background) == "rgb(20, 23, 27)"
    opened.run("document.getElementById('theme').click()")
    assert (opened.run(background), opened.run(text)) == ("rgb(255, 255, 255)", "#1c1f23")


@pytest.mark.parametrize("width", [390, 1200])
def test_tables_scroll_inside_themselves(opened, width):
    opened.resize(width)
    # Charts follow a change of width when the browser next has time.
    opened.run(f"until(() => document.documentElement.scrollWidth <= {width})")
    inside = opened.run("(box => box.scrollWidth > box.clientWidth)(document.querySelector('#noise-samples .scroll'))")
    assert inside == (width == 390)


def test_on_a_phone_numbers_scroll_beside_the_name_of_their_row(opened):
    opened.resize(390)
    opened.run("document.querySelector('#noise-samples details.study').open = true")
    moved = opened.run("""(box => {
        box.scrollLeft = 150;
        const [name, number] = [...box.querySelectorAll('tbody tr')[0].cells].map(c => c.getBoundingClientRect().left);
        return [box.scrollLeft, name - box.getBoundingClientRect().left, number < name];
    })(document.querySelector('#noise-samples .scroll'))""")
    assert moved == [150, 0, True]


def test_long_cells_wrap(opened):
    wraps = opened.run("""[...document.querySelectorAll('#noise-samples td')]
        .filter(cell => getComputedStyle(cell).whiteSpace === 'normal').map(cell => cell.textContent)""")
    assert wraps == [LONG]


def test_paper_shows_the_drawn_figures(opened):
    opened.call("Emulation.setEmulatedMedia", media="print")
    shown = opened.run("""['.interactive', 'img.drawn', 'nav', '.files']
        .map(name => getComputedStyle(document.querySelector(name)).display !== 'none')""")
    opened.call("Emulation.setEmulatedMedia", media="")
    assert shown == [False, True, False, False]


def test_a_headline_names_a_figure_of_its_section():
    with pytest.raises(ValueError, match="'time' is not a figure of the section"):
        Section("t", "s", [], headline=Headline(1, "x", "time"))


def test_figures_of_a_section_have_names_of_their_own():
    figures = [Figure("same", "", [Panel("", "", "", [])])] * 2
    with pytest.raises(ValueError, match="2 figures are named 'same'"):
        Section("t", "s", figures)
