"""Makes the pictures of docs/dashboard-pictures.md from the screenshots that `make web-test` leaves."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
#: The pages, by the names of their screenshots, and their names in docs/images.
PAGES = {
    "overview": "overview",
    "stream": "stream",
    "graphs": "graphs",
    "graphs-1": "graph",
    "workers": "workers",
    "workers-host-2": "worker",
    "memory": "memory",
    "routes": "routes",
    "datasets": "datasets",
    "events": "events",
    "logs": "logs",
    "clients": "clients",
    "task": "task",
}


def main() -> None:
    """Writes a picture for each page: light and dark, 1,280 pixels wide, and 2,560 pixels wide."""
    for page, name in PAGES.items():
        for kind, ending in {"light": "", "dark": "-dark", "2560": "-2560"}.items():
            image = Image.open(ROOT / f"out/web/{page}-{kind}.png").convert("RGB")
            image.save(ROOT / f"docs/images/dashboard-{name}{ending}.webp", quality=45, method=6)


if __name__ == "__main__":
    main()
