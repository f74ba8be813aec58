"""Pictures of products: shapes in the product's colour, as SVG."""

from __future__ import annotations

from agentgym_envs.webarena.sites.content.draw import Draw

_HUES = {
    "Amber": "#d98e04", "Black": "#2b2b2b", "Cobalt": "#1f4fa3", "Cream": "#e9dfc3", "Forest Green": "#2f5d3a",
    "Grey": "#8a8d8f", "Mustard": "#c9a227", "Navy": "#22304f", "Rust": "#a4492c", "Sage": "#93a58a",
    "Terracotta": "#c4683f", "White": "#f4f4f0",
}  # fmt: skip


def product_picture(number: int, colour: str) -> bytes:
    """Draw the picture of a product.

    Args:
        number: The product's number, which gives the shapes.
        colour: One of the shop's colours.
    """
    draw = Draw(f"picture {number}")
    width, height = draw.integer(60, 130), draw.integer(60, 130)
    left, top = 100 - width // 2, 100 - height // 2
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="200" height="200" viewBox="0 0 200 200">'
        '<rect width="200" height="200" fill="#f7f5f0"/>'
        f'<ellipse cx="100" cy="{top + height + 8}" rx="{width // 2 + 10}" ry="8" fill="#dcd8cf"/>'
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="{draw.integer(4, 50)}" '
        f'fill="{_HUES[colour]}" stroke="#555" stroke-width="1.5"/>'
        f'<circle cx="100" cy="{top}" r="{draw.integer(6, 20)}" fill="{_HUES[colour]}" stroke="#555"/></svg>'
    ).encode()
