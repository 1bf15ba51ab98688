"""Two diagrams: from an environment to a report, and one round of a federation."""

from __future__ import annotations

from benchmarks.pictures.canvas import NARROW, SERIES, SIZE, WIDTH, Drawing

STEPS = (
    ("Environment", ("WebShop, ALFWorld, Skills,", "or your own"), "gym.make"),
    ("Client split", ("who holds which tasks: a file", "that can be verified"), "federate"),
    ("Clients", ("each an ordinary environment", "over its own tasks"), "split[3].make()"),
    ("Method", ("FedAgent, PubSwap, baselines,", "or a class of yours"), "train"),
    ("Report", ("curves, episodes, results", "that are played again"), "bench verify"),
)


def draw_whole() -> Drawing:
    """Draw the steps from an environment to a report, one below the other, with the call of each."""
    drawing = Drawing("Environment, client split, clients, method, report", 492, NARROW)
    for number, (title, lines, call) in enumerate(STEPS):
        top = 12 + 96 * number
        if number:
            drawing.add_line([(74, top - 20), (74, top + 2)], "muted", arrow=True)
        PICTOGRAMS[number](drawing, 74, top + 40)
        drawing.add_text(152, top + 28, title, size=17, bold=True)
        drawing.add_box(264, top + 7, 144, 30, "panel", "edge", radius=5)
        drawing.add_text(336, top + 27, call, anchor="middle", mono=True)
        drawing.add_lines(152, top + 56, lines)
    return drawing


def _draw_tasks(drawing: Drawing, x: float, y: float) -> None:
    """A pool of tasks of several categories."""
    for number in range(18):
        across, down = number % 6, number // 6
        drawing.add_box(x - 48 + 16 * across, y - 24 + 16 * down, 13, 13, SERIES[(5 * number + down) % 4], radius=2)


def _draw_split(drawing: Drawing, x: float, y: float) -> None:
    """Stacked bars: clients with different mixtures."""
    for number, shares in enumerate(((30, 12, 6), (8, 30, 10), (12, 6, 30), (24, 16, 8))):
        top = y - 24.0
        for color, share in zip(SERIES, shares, strict=False):
            drawing.add_box(x - 40 + 21 * number, top, 16, share - 1, color)
            top += share


def _draw_clients(drawing: Drawing, x: float, y: float) -> None:
    """Three clients, each with tasks of one colour."""
    for number, color in enumerate(SERIES[:3]):
        left = x - 50 + 36 * number
        drawing.add_box(left, y - 24, 28, 48, "panel", "edge", radius=4)
        for place in range(4):
            drawing.add_box(left + 3 + 12 * (place % 2), y - 18 + 20 * (place // 2), 10, 10, color, radius=2)


def _draw_server(drawing: Drawing, x: float, y: float) -> None:
    """A server between clients."""
    for number, color in enumerate(SERIES[:3]):
        across = 40 * (number - 1)
        drawing.add_line([(x + across, y + 20), (x + across / 4, y - 10)], "muted", 1.5)
        drawing.add_circle(x + across, y + 20, 8, color)
    drawing.add_box(x - 22, y - 28, 44, 22, "text", radius=4)


def _draw_report(drawing: Drawing, x: float, y: float) -> None:
    """A curve on a page."""
    drawing.add_box(x - 40, y - 30, 80, 60, "panel", "edge", radius=4)
    drawing.add_line([(x - 30, y + 18), (x - 12, y + 6), (x + 6, y - 10), (x + 30, y - 18)], "blue")
    drawing.add_line([(x - 30, y + 20), (x - 12, y + 14), (x + 6, y + 8), (x + 30, y + 6)], "red")


PICTOGRAMS = (_draw_tasks, _draw_split, _draw_clients, _draw_server, _draw_report)


def draw_round() -> Drawing:
    """Draw the steps of the server and of the clients in one round, and the messages between them."""
    drawing = Drawing(
        "One round: the server sends a policy, clients play and learn, the server checks and averages", 372
    )
    drawing.add_box(20, 20, 290, 332, "panel", "edge", radius=8)
    drawing.add_text(40, 50, "Server", size=17, bold=True)
    lines = (
        ("1", "draws the clients of the round", ""),
        ("2", "sends them the policy", ""),
        ("5", "checks every update: its form,", "that it is finite, its norm"),
        ("6", "averages the updates", "(here methods differ)"),
        ("7", "plays held-out tasks", ""),
        ("8", "commits the round: a crash", "after it loses nothing"),
    )
    y = 84.0
    for number, first, second in lines:
        _add_number(drawing, 52, y - 5, number)
        drawing.add_text(72, y, first)
        if second:
            y += 1.35 * SIZE
            drawing.add_text(72, y, second, "muted")
        y += 34 if not second else 33
    for place, (client, color) in enumerate(zip((2, 5, 9), SERIES, strict=False)):
        _draw_client(drawing, 480, 20 + 114 * place, client, color)
    return drawing


def _draw_client(drawing: Drawing, left: float, top: float, client: int, color: str) -> None:
    drawing.add_box(left, top, WIDTH - 20 - left, 104, "card", color, radius=8)
    drawing.add_text(left + 20, top + 28, f"Client {client}", bold=True)
    drawing.add_text(left + 94, top + 28, "its tasks stay here", "muted")
    for place in range(4):
        drawing.add_box(left + 246 + 16 * place, top + 16, 13, 13, color, radius=2)
    _add_number(drawing, left + 32, top + 53, "3")
    drawing.add_text(left + 52, top + 58, "plays groups of episodes")
    _add_number(drawing, left + 32, top + 81, "4")
    drawing.add_text(left + 52, top + 86, "learns from their rewards")
    drawing.add_text(395, top + 28, "policy", "muted", anchor="middle")
    drawing.add_line([(314, top + 38), (left - 4, top + 38)], "muted", arrow=True)
    drawing.add_text(395, top + 68, "update", "muted", anchor="middle")
    drawing.add_line([(left - 4, top + 78), (314, top + 78)], color, arrow=True)


def _add_number(drawing: Drawing, x: float, y: float, number: str) -> None:
    drawing.add_circle(x, y, 12, "text")
    drawing.add_text(x, y + 5, number, "card", anchor="middle", bold=True)
