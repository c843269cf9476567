"""Bars, as SVG: one panel for each metric, one bar for each competitor."""

from html import escape

from benchmarks.harness.results import METRICS, Results

PANELS = ["drain", "drain 2", "bulk", "concurrent", "single", "burst", "pickup p50", "server"]
WIDTH, BAR, GAP, LABEL, VALUE, COLUMNS = 440, 16, 4, 110, 60, 2
OURS, OTHERS = "#c2410c", "#94a3b8"


def plot(results: Results) -> str:
    panel_height = (BAR + GAP) * len(results.metrics) + 46
    panels = [metric for metric in PANELS if any(results.best(n, metric) for n in results.metrics)]
    drawn = [
        f'<g transform="translate({at % COLUMNS * WIDTH},{at // COLUMNS * panel_height})">'
        f"{_panel(results, metric)}</g>"
        for at, metric in enumerate(panels)
    ]
    height = -(-len(panels) // COLUMNS) * panel_height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * COLUMNS} {height}" '
        'font-family="sans-serif" font-size="11" fill="#1e293b">\n'
        '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def _panel(results: Results, metric: str) -> str:
    title, digits, more = METRICS[metric]
    values = {name: value for name in results.metrics if (value := results.best(name, metric))}
    order = sorted(values, key=lambda name: values[name], reverse=more)
    scale = (WIDTH - LABEL - VALUE - 20) / max(values.values())
    words = "" if more else " (less is better)"
    parts = [f'<text x="8" y="22" font-weight="bold">{escape(title)}{words}</text>']
    for row, name in enumerate(order):
        y = 34 + row * (BAR + GAP)
        length = max(values[name] * scale, 1)
        color = OURS if name == "Queasy" else OTHERS
        parts += [
            f'<text x="{LABEL - 6}" y="{y + 12}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{color}"/>',
            f'<text x="{LABEL + length + 5:.1f}" y="{y + 12}">{values[name]:,.{digits}f}</text>',
        ]
    return "".join(parts)
