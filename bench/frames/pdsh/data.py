"""Data for the queries of PDS-H: the tables of TPC-H's schema, with its sizes, keys and ranges.

    python bench/frames/pdsh/data.py DIRECTORY --scale 1

Texts are shorter than dbgen's, and have the words that the queries look for about as often.
"""

from __future__ import annotations

import argparse
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl

TABLES = ("region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem")
_REGIONS = ["AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST"]
_NATIONS = {
    "ALGERIA": 0, "ARGENTINA": 1, "BRAZIL": 1, "CANADA": 1, "EGYPT": 4, "ETHIOPIA": 0, "FRANCE": 3, "GERMANY": 3, "INDIA": 2,
    "INDONESIA": 2, "IRAN": 4, "IRAQ": 4, "JAPAN": 2, "JORDAN": 4, "KENYA": 0, "MOROCCO": 0, "MOZAMBIQUE": 0, "PERU": 1,
    "CHINA": 2, "ROMANIA": 3, "SAUDI ARABIA": 4, "VIETNAM": 2, "RUSSIA": 3, "UNITED KINGDOM": 3, "UNITED STATES": 1,
}  # fmt: skip
_COLOURS = """almond antique aquamarine azure beige bisque black blanched blue blush brown burlywood
chartreuse chiffon chocolate coral cornflower cream cyan dark deep dim dodger drab firebrick floral
forest frosted gainsboro ghost goldenrod green grey honeydew hot indian ivory khaki lace lavender lawn
lemon light lime linen magenta maroon medium metallic midnight mint misty moccasin navajo navy olive
orange orchid pale papaya peach peru pink plum powder puff purple red rose rosy royal saddle salmon
sandy seashell sienna sky slate smoke snow spring steel tan thistle tomato turquoise violet wheat
white yellow""".split()
_WORDS = """carefully quickly furiously final bold regular express ironic pending silent deposits accounts
packages theodolites foxes ideas requests instructions special pearls Customer Complaints sleep nag
haggle wake cajole""".split()
_TYPES = [
    f"{a} {b} {c}"
    for a in ("STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO")
    for b in ("ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED")
    for c in ("TIN", "NICKEL", "BRASS", "STEEL", "COPPER")
]
_CONTAINERS = [
    f"{a} {b}"
    for a in ("SM", "LG", "MED", "JUMBO", "WRAP")
    for b in ("CASE", "BOX", "BAG", "JAR", "PKG", "PACK", "CAN", "DRUM")
]
_SEGMENTS = ["AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD"]
_PRIORITIES = ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"]
_INSTRUCTIONS = ["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"]
_MODES = ["REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB"]
_FIRST, _LAST, _CURRENT = date(1992, 1, 1), date(1998, 8, 2), date(1995, 6, 17)
#: Orders of one file at most.
_CHUNK = 250_000


class _Maker:
    """Makes the tables of one scale. Each table has random numbers of its own."""

    def __init__(self, home: Path, scale: float, seed: int) -> None:
        self.home, self.seed = home, seed
        self.suppliers = max(int(10_000 * scale), 20)
        self.customers = max(int(150_000 * scale), 150)
        self.parts = max(int(200_000 * scale), 200)
        self.orders = max(int(1_500_000 * scale), 1500)

    def make(self) -> None:
        for number, table in enumerate(TABLES[:6]):
            self.random = np.random.default_rng((self.seed, number))
            self._write(getattr(self, f"_{table}")(), table, 0)
        for number, start in enumerate(range(0, self.orders, _CHUNK)):
            self.random = np.random.default_rng((self.seed, 99, number))
            orders, lines = self._orders(start, min(_CHUNK, self.orders - start))
            self._write(orders, "orders", number)
            self._write(lines, "lineitem", number)

    def _write(self, frame: pl.DataFrame, table: str, number: int) -> None:
        folder = self.home / table
        folder.mkdir(parents=True, exist_ok=True)
        frame.write_parquet(folder / f"{number:03}.parquet", row_group_size=125_000)

    # Columns.

    def _choice(self, values: list[str], n: int) -> pl.Series:
        return pl.Series(values).gather(self.random.integers(0, len(values), n))

    def _text(self, words: list[str], count: int, n: int) -> pl.Series:
        columns = [self._choice(words, n).alias(str(i)) for i in range(count)]
        return pl.select(pl.concat_str(columns, separator=" ")).to_series()

    def _money(self, low: float, high: float, n: int) -> np.ndarray:
        return self.random.integers(int(low * 100), int(high * 100) + 1, n) / 100

    def _phone(self, nations: np.ndarray) -> pl.Series:
        local = self.random.integers(1_000_000, 10_000_000, len(nations))
        return (pl.Series(nations + 10).cast(pl.String) + "-" + pl.Series(local).cast(pl.String)).alias("phone")

    # Tables.

    def _region(self) -> pl.DataFrame:
        return pl.DataFrame({"r_regionkey": range(5), "r_name": _REGIONS, "r_comment": self._text(_WORDS, 3, 5)})

    def _nation(self) -> pl.DataFrame:
        return pl.DataFrame(
            {
                "n_nationkey": range(25),
                "n_name": list(_NATIONS),
                "n_regionkey": list(_NATIONS.values()),
                "n_comment": self._text(_WORDS, 3, 25),
            }
        )

    def _supplier(self) -> pl.DataFrame:
        n = self.suppliers
        keys, nations = np.arange(1, n + 1), self.random.integers(0, 25, n)
        return pl.DataFrame(
            {
                "s_suppkey": keys,
                "s_name": pl.Series(keys).cast(pl.String).str.zfill(9).str.replace("^", "Supplier#"),
                "s_address": self._text(_WORDS, 2, n),
                "s_nationkey": nations,
                "s_phone": self._phone(nations),
                "s_acctbal": self._money(-999.99, 9999.99, n),
                "s_comment": self._text(_WORDS, 5, n),
            }
        )

    def _customer(self) -> pl.DataFrame:
        n = self.customers
        keys, nations = np.arange(1, n + 1), self.random.integers(0, 25, n)
        return pl.DataFrame(
            {
                "c_custkey": keys,
                "c_name": pl.Series(keys).cast(pl.String).str.zfill(9).str.replace("^", "Customer#"),
                "c_address": self._text(_WORDS, 2, n),
                "c_nationkey": nations,
                "c_phone": self._phone(nations),
                "c_acctbal": self._money(-999.99, 9999.99, n),
                "c_mktsegment": self._choice(_SEGMENTS, n),
                "c_comment": self._text(_WORDS, 6, n),
            }
        )

    def _part(self) -> pl.DataFrame:
        n = self.parts
        keys, makers = np.arange(1, n + 1), self.random.integers(1, 6, n)
        brands = makers * 10 + self.random.integers(1, 6, n)
        return pl.DataFrame(
            {
                "p_partkey": keys,
                "p_name": self._text(_COLOURS, 5, n),
                "p_mfgr": pl.Series(makers).cast(pl.String).str.replace("^", "Manufacturer#"),
                "p_brand": pl.Series(brands).cast(pl.String).str.replace("^", "Brand#"),
                "p_type": self._choice(_TYPES, n),
                "p_size": self.random.integers(1, 51, n),
                "p_container": self._choice(_CONTAINERS, n),
                "p_retailprice": self._prices(keys),
                "p_comment": self._text(_WORDS, 2, n),
            }
        )

    def _prices(self, parts: np.ndarray) -> np.ndarray:
        return (90000 + (parts // 10) % 20001 + 100 * (parts % 1000)) / 100

    def _supplier_of(self, parts: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Returns one of the four suppliers of each part."""
        n = self.suppliers
        return (parts + which * (n // 4 + (parts - 1) // n)) % n + 1

    def _partsupp(self) -> pl.DataFrame:
        parts = np.repeat(np.arange(1, self.parts + 1), 4)
        n = len(parts)
        return pl.DataFrame(
            {
                "ps_partkey": parts,
                "ps_suppkey": self._supplier_of(parts, np.tile(np.arange(4), self.parts)),
                "ps_availqty": self.random.integers(1, 10_000, n),
                "ps_supplycost": self._money(1, 1000, n),
                "ps_comment": self._text(_WORDS, 4, n),
            }
        )

    def _orders(self, start: int, n: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Returns orders from a number on, and their lines."""
        number = np.arange(start, start + n)
        keys = number // 8 * 32 + number % 8 + 1
        customers = self.random.integers(1, self.customers + 1, n)
        customers -= (customers % 3 == 0) & (customers > 1)  # a third of the customers has no order
        first = np.datetime64(_FIRST)
        days = int((np.datetime64(_LAST) - first).astype(int))
        ordered = first + self.random.integers(0, days + 1, n)
        counts = self.random.integers(1, 8, n)
        lines = self._lines(np.repeat(keys, counts), np.repeat(ordered, counts), counts)
        sums = lines.group_by("l_orderkey", maintain_order=True).agg(
            total=(pl.col("l_extendedprice") * (1 + pl.col("l_tax")) * (1 - pl.col("l_discount"))).sum().round(2),
            open=(pl.col("l_linestatus") == "O").sum(),
            n=pl.len(),
        )
        status = pl.when(pl.col("open") == 0).then(pl.lit("F")).when(pl.col("open") == pl.col("n")).then(pl.lit("O"))
        orders = pl.DataFrame(
            {
                "o_orderkey": keys,
                "o_custkey": customers,
                "o_orderstatus": sums.select(status.otherwise(pl.lit("P"))).to_series(),
                "o_totalprice": sums["total"],
                "o_orderdate": ordered,
                "o_orderpriority": self._choice(_PRIORITIES, n),
                "o_clerk": pl.Series(self.random.integers(1, 1001, n)).cast(pl.String).str.replace("^", "Clerk#"),
                "o_shippriority": np.zeros(n, np.int64),
                "o_comment": self._text(_WORDS, 5, n),
            }
        )
        return orders, lines

    def _lines(self, orders: np.ndarray, ordered: np.ndarray, counts: np.ndarray) -> pl.DataFrame:
        n = len(orders)
        parts = self.random.integers(1, self.parts + 1, n)
        quantity = self.random.integers(1, 51, n)
        shipped = ordered + self.random.integers(1, 122, n)
        received = shipped + self.random.integers(1, 31, n)
        returned = np.where(self.random.random(n) < 0.5, "R", "A")
        ends = np.cumsum(counts)
        return pl.DataFrame(
            {
                "l_orderkey": orders,
                "l_partkey": parts,
                "l_suppkey": self._supplier_of(parts, self.random.integers(0, 4, n)),
                "l_linenumber": np.arange(n) - np.repeat(ends - counts, counts) + 1,
                "l_quantity": quantity.astype(float),
                "l_extendedprice": np.round(quantity * self._prices(parts), 2),
                "l_discount": self.random.integers(0, 11, n) / 100,
                "l_tax": self.random.integers(0, 9, n) / 100,
                "l_returnflag": np.where(received <= np.datetime64(_CURRENT), returned, "N"),
                "l_linestatus": np.where(shipped > np.datetime64(_CURRENT), "O", "F"),
                "l_shipdate": shipped,
                "l_commitdate": ordered + self.random.integers(30, 91, n),
                "l_receiptdate": received,
                "l_shipinstruct": self._choice(_INSTRUCTIONS, n),
                "l_shipmode": self._choice(_MODES, n),
                "l_comment": self._text(_WORDS, 2, n),
            }
        )


def make(home: Path, scale: float, seed: int = 1) -> None:
    """Writes all tables as Parquet files: a directory for each."""
    _Maker(home, scale, seed).make()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is about 1 GB of text")
    given = parser.parse_args()
    make(given.directory, given.scale)
