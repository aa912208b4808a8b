"""The 22 queries of PDS-H as queries of Polars, by the public definitions of TPC-H with the
parameters of its validation run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import polars as pl

c = pl.col
_REVENUE = c("l_extendedprice") * (1 - c("l_discount"))


class Tables:
    """The tables in a directory, as scans."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def __getattr__(self, name: str) -> pl.LazyFrame:
        return pl.scan_parquet(self._home / name / "*.parquet")


def q1(t: Tables) -> pl.LazyFrame:
    """Sums of the lines that were shipped, by status."""
    return (
        t.lineitem.filter(c("l_shipdate") <= date(1998, 9, 2))
        .group_by("l_returnflag", "l_linestatus")
        .agg(
            sum_qty=c("l_quantity").sum(),
            sum_base_price=c("l_extendedprice").sum(),
            sum_disc_price=_REVENUE.sum(),
            sum_charge=(_REVENUE * (1 + c("l_tax"))).sum(),
            avg_qty=c("l_quantity").mean(),
            avg_price=c("l_extendedprice").mean(),
            avg_disc=c("l_discount").mean(),
            count_order=pl.len(),
        )
        .sort("l_returnflag", "l_linestatus")
    )


def q2(t: Tables) -> pl.LazyFrame:
    """The cheapest supplier of Europe for each part of a kind."""
    offers = (
        t.part.filter(c("p_size") == 15, c("p_type").str.ends_with("BRASS"))
        .join(t.partsupp, left_on="p_partkey", right_on="ps_partkey")
        .join(t.supplier, left_on="ps_suppkey", right_on="s_suppkey")
        .join(t.nation, left_on="s_nationkey", right_on="n_nationkey")
        .join(t.region, left_on="n_regionkey", right_on="r_regionkey")
        .filter(c("r_name") == "EUROPE")
    )
    cheapest = offers.group_by("p_partkey").agg(c("ps_supplycost").min())
    return (
        offers.join(cheapest, on=["p_partkey", "ps_supplycost"])
        .select("s_acctbal", "s_name", "n_name", "p_partkey", "p_mfgr", "s_address", "s_phone", "s_comment")
        .sort("s_acctbal", "n_name", "s_name", "p_partkey", descending=[True, False, False, False])
        .head(100)
    )


def q3(t: Tables) -> pl.LazyFrame:
    """Orders of a segment that were not shipped at a day, by revenue."""
    day = date(1995, 3, 15)
    return (
        t.customer.filter(c("c_mktsegment") == "BUILDING")
        .join(t.orders, left_on="c_custkey", right_on="o_custkey")
        .join(t.lineitem, left_on="o_orderkey", right_on="l_orderkey")
        .filter(c("o_orderdate") < day, c("l_shipdate") > day)
        .group_by("o_orderkey", "o_orderdate", "o_shippriority")
        .agg(revenue=_REVENUE.sum())
        .select(c("o_orderkey").alias("l_orderkey"), "revenue", "o_orderdate", "o_shippriority")
        .sort("revenue", "o_orderdate", descending=[True, False])
        .head(10)
    )


def q4(t: Tables) -> pl.LazyFrame:
    """Orders of a quarter with a late line, by priority."""
    late = t.lineitem.filter(c("l_commitdate") < c("l_receiptdate"))
    return (
        t.orders.filter(c("o_orderdate").is_between(date(1993, 7, 1), date(1993, 10, 1), closed="left"))
        .join(late, left_on="o_orderkey", right_on="l_orderkey", how="semi")
        .group_by("o_orderpriority")
        .agg(order_count=pl.len())
        .sort("o_orderpriority")
    )


def q5(t: Tables) -> pl.LazyFrame:
    """Revenue within the nations of Asia."""
    return (
        t.region.join(t.nation, left_on="r_regionkey", right_on="n_regionkey")
        .join(t.customer, left_on="n_nationkey", right_on="c_nationkey")
        .join(t.orders, left_on="c_custkey", right_on="o_custkey")
        .join(t.lineitem, left_on="o_orderkey", right_on="l_orderkey")
        .join(t.supplier, left_on=["l_suppkey", "n_nationkey"], right_on=["s_suppkey", "s_nationkey"])
        .filter(c("r_name") == "ASIA", c("o_orderdate").is_between(date(1994, 1, 1), date(1995, 1, 1), closed="left"))
        .group_by("n_name")
        .agg(revenue=_REVENUE.sum())
        .sort("revenue", descending=True)
    )


def q6(t: Tables) -> pl.LazyFrame:
    """Revenue that small discounts cost in a year."""
    return t.lineitem.filter(
        c("l_shipdate").is_between(date(1994, 1, 1), date(1995, 1, 1), closed="left"),
        c("l_discount").is_between(0.05, 0.07),
        c("l_quantity") < 24,
    ).select(revenue=(c("l_extendedprice") * c("l_discount")).sum())


def q7(t: Tables) -> pl.LazyFrame:
    """Volume of shipping between two nations, by year."""
    pair = ["FRANCE", "GERMANY"]
    of_supplier = t.nation.filter(c("n_name").is_in(pair)).select("n_nationkey", supp_nation="n_name")
    of_customer = t.nation.filter(c("n_name").is_in(pair)).select("n_nationkey", cust_nation="n_name")
    return (
        t.lineitem.filter(c("l_shipdate").is_between(date(1995, 1, 1), date(1996, 12, 31)))
        .join(t.supplier, left_on="l_suppkey", right_on="s_suppkey")
        .join(of_supplier, left_on="s_nationkey", right_on="n_nationkey")
        .join(t.orders, left_on="l_orderkey", right_on="o_orderkey")
        .join(t.customer, left_on="o_custkey", right_on="c_custkey")
        .join(of_customer, left_on="c_nationkey", right_on="n_nationkey")
        .filter(c("supp_nation") != c("cust_nation"))
        .group_by("supp_nation", "cust_nation", c("l_shipdate").dt.year().alias("l_year"))
        .agg(revenue=_REVENUE.sum())
        .sort("supp_nation", "cust_nation", "l_year")
    )


def q8(t: Tables) -> pl.LazyFrame:
    """Share of a nation in a market, by year."""
    of_customer = t.nation.join(t.region, left_on="n_regionkey", right_on="r_regionkey").select("n_nationkey", "r_name")
    of_supplier = t.nation.select("n_nationkey", nation="n_name")
    volume = _REVENUE
    return (
        t.part.filter(c("p_type") == "ECONOMY ANODIZED STEEL")
        .join(t.lineitem, left_on="p_partkey", right_on="l_partkey")
        .join(t.orders, left_on="l_orderkey", right_on="o_orderkey")
        .join(t.customer, left_on="o_custkey", right_on="c_custkey")
        .join(of_customer, left_on="c_nationkey", right_on="n_nationkey")
        .join(t.supplier, left_on="l_suppkey", right_on="s_suppkey")
        .join(of_supplier, left_on="s_nationkey", right_on="n_nationkey")
        .filter(c("r_name") == "AMERICA", c("o_orderdate").is_between(date(1995, 1, 1), date(1996, 12, 31)))
        .group_by(c("o_orderdate").dt.year().alias("o_year"))
        .agg(mkt_share=pl.when(c("nation") == "BRAZIL").then(volume).otherwise(0).sum() / volume.sum())
        .sort("o_year")
    )


def q9(t: Tables) -> pl.LazyFrame:
    """Profit of parts of a colour, by nation and year."""
    return (
        t.part.filter(c("p_name").str.contains("green", literal=True))
        .join(t.partsupp, left_on="p_partkey", right_on="ps_partkey")
        .join(t.lineitem, left_on=["p_partkey", "ps_suppkey"], right_on=["l_partkey", "l_suppkey"])
        .join(t.supplier, left_on="ps_suppkey", right_on="s_suppkey")
        .join(t.orders, left_on="l_orderkey", right_on="o_orderkey")
        .join(t.nation, left_on="s_nationkey", right_on="n_nationkey")
        .group_by(c("n_name").alias("nation"), c("o_orderdate").dt.year().alias("o_year"))
        .agg(sum_profit=(_REVENUE - c("ps_supplycost") * c("l_quantity")).sum())
        .sort("nation", "o_year", descending=[False, True])
    )


def q10(t: Tables) -> pl.LazyFrame:
    """Customers who returned most in a quarter."""
    return (
        t.customer.join(t.orders, left_on="c_custkey", right_on="o_custkey")
        .join(t.lineitem, left_on="o_orderkey", right_on="l_orderkey")
        .join(t.nation, left_on="c_nationkey", right_on="n_nationkey")
        .filter(
            c("o_orderdate").is_between(date(1993, 10, 1), date(1994, 1, 1), closed="left"), c("l_returnflag") == "R"
        )
        .group_by("c_custkey", "c_name", "c_acctbal", "c_phone", "n_name", "c_address", "c_comment")
        .agg(revenue=_REVENUE.sum())
        .select("c_custkey", "c_name", "revenue", "c_acctbal", "n_name", "c_address", "c_phone", "c_comment")
        .sort("revenue", descending=True)
        .head(20)
    )


def q11(t: Tables) -> pl.LazyFrame:
    """Parts that are an important share of a nation's stock."""
    stock = (
        t.partsupp.join(t.supplier, left_on="ps_suppkey", right_on="s_suppkey")
        .join(t.nation, left_on="s_nationkey", right_on="n_nationkey")
        .filter(c("n_name") == "GERMANY")
        .with_columns(value=c("ps_supplycost") * c("ps_availqty"))
    )
    least = stock.select(least=c("value").sum() * 0.0001)
    return (
        stock.group_by("ps_partkey")
        .agg(c("value").sum())
        .join(least, how="cross")
        .filter(c("value") > c("least"))
        .select("ps_partkey", "value")
        .sort("value", descending=True)
    )


def q12(t: Tables) -> pl.LazyFrame:
    """Late lines of two modes of shipping, by priority of the order."""
    urgent = c("o_orderpriority").is_in(["1-URGENT", "2-HIGH"])
    return (
        t.orders.join(t.lineitem, left_on="o_orderkey", right_on="l_orderkey")
        .filter(
            c("l_shipmode").is_in(["MAIL", "SHIP"]),
            c("l_commitdate") < c("l_receiptdate"),
            c("l_shipdate") < c("l_commitdate"),
            c("l_receiptdate").is_between(date(1994, 1, 1), date(1995, 1, 1), closed="left"),
        )
        .group_by("l_shipmode")
        .agg(high_line_count=urgent.sum(), low_line_count=urgent.not_().sum())
        .sort("l_shipmode")
    )


def q13(t: Tables) -> pl.LazyFrame:
    """Customers by their number of orders."""
    orders = t.orders.filter(c("o_comment").str.contains("special.*requests").not_())
    return (
        t.customer.join(orders, left_on="c_custkey", right_on="o_custkey", how="left")
        .group_by("c_custkey")
        .agg(c_count=c("o_orderkey").count())
        .group_by("c_count")
        .agg(custdist=pl.len())
        .sort("custdist", "c_count", descending=True)
    )


def q14(t: Tables) -> pl.LazyFrame:
    """Share of promoted parts in a month's revenue."""
    promoted = pl.when(c("p_type").str.starts_with("PROMO")).then(_REVENUE).otherwise(0)
    return (
        t.lineitem.join(t.part, left_on="l_partkey", right_on="p_partkey")
        .filter(c("l_shipdate").is_between(date(1995, 9, 1), date(1995, 10, 1), closed="left"))
        .select(promo_revenue=100 * promoted.sum() / _REVENUE.sum())
    )


def q15(t: Tables) -> pl.LazyFrame:
    """The supplier with the largest revenue of a quarter."""
    revenue = (
        t.lineitem.filter(c("l_shipdate").is_between(date(1996, 1, 1), date(1996, 4, 1), closed="left"))
        .group_by("l_suppkey")
        .agg(total_revenue=_REVENUE.sum())
    )
    largest = revenue.select(largest=c("total_revenue").max())
    return (
        t.supplier.join(revenue, left_on="s_suppkey", right_on="l_suppkey")
        .join(largest, how="cross")
        .filter(c("total_revenue") >= c("largest") * (1 - 1e-12))
        .select("s_suppkey", "s_name", "s_address", "s_phone", "total_revenue")
        .sort("s_suppkey")
    )


def q16(t: Tables) -> pl.LazyFrame:
    """Number of suppliers without complaints, by kind of part."""
    complaints = t.supplier.filter(c("s_comment").str.contains("Customer.*Complaints")).select("s_suppkey")
    return (
        t.part.join(t.partsupp, left_on="p_partkey", right_on="ps_partkey")
        .filter(
            c("p_brand") != "Brand#45",
            c("p_type").str.starts_with("MEDIUM POLISHED").not_(),
            c("p_size").is_in([49, 14, 23, 45, 19, 3, 36, 9]),
        )
        .join(complaints, left_on="ps_suppkey", right_on="s_suppkey", how="anti")
        .group_by("p_brand", "p_type", "p_size")
        .agg(supplier_cnt=c("ps_suppkey").n_unique())
        .sort("supplier_cnt", "p_brand", "p_type", "p_size", descending=[True, False, False, False])
    )


def q17(t: Tables) -> pl.LazyFrame:
    """Revenue of small orders of a kind of part, by year."""
    lines = t.part.filter(c("p_brand") == "Brand#23", c("p_container") == "MED BOX").join(
        t.lineitem, left_on="p_partkey", right_on="l_partkey"
    )
    means = lines.group_by("p_partkey").agg(few=0.2 * c("l_quantity").mean())
    return (
        lines.join(means, on="p_partkey")
        .filter(c("l_quantity") < c("few"))
        .select(avg_yearly=c("l_extendedprice").sum() / 7.0)
    )


def q18(t: Tables) -> pl.LazyFrame:
    """Customers with large orders."""
    large = t.lineitem.group_by("l_orderkey").agg(c("l_quantity").sum()).filter(c("l_quantity") > 300)
    return (
        t.orders.join(large, left_on="o_orderkey", right_on="l_orderkey")
        .join(t.customer, left_on="o_custkey", right_on="c_custkey")
        .select("c_name", "o_custkey", "o_orderkey", "o_orderdate", "o_totalprice", "l_quantity")
        .sort("o_totalprice", "o_orderdate", "o_orderkey", descending=[True, False, False])
        .head(100)
    )


def q19(t: Tables) -> pl.LazyFrame:
    """Revenue of parts of three kinds that were shipped by air."""

    def kind(brand: str, size: str, least: int, most: int) -> pl.Expr:
        boxes = {"SM": ["CASE", "BOX", "PACK", "PKG"], "MED": ["BAG", "BOX", "PKG", "PACK"]}
        boxes["LG"] = boxes["SM"]
        return (
            (c("p_brand") == brand)
            & c("p_container").is_in([f"{size} {box}" for box in boxes[size]])
            & c("l_quantity").is_between(least, least + 10)
            & c("p_size").is_between(1, most)
        )

    return (
        t.lineitem.join(t.part, left_on="l_partkey", right_on="p_partkey")
        .filter(c("l_shipmode").is_in(["AIR", "REG AIR"]), c("l_shipinstruct") == "DELIVER IN PERSON")
        .filter(kind("Brand#12", "SM", 1, 5) | kind("Brand#23", "MED", 10, 10) | kind("Brand#34", "LG", 20, 15))
        .select(revenue=_REVENUE.sum())
    )


def q20(t: Tables) -> pl.LazyFrame:
    """Suppliers of a nation with more stock of a colour than half a year needs."""
    shipped = (
        t.lineitem.filter(c("l_shipdate").is_between(date(1994, 1, 1), date(1995, 1, 1), closed="left"))
        .group_by("l_partkey", "l_suppkey")
        .agg(needed=0.5 * c("l_quantity").sum())
    )
    surplus = (
        t.partsupp.join(
            t.part.filter(c("p_name").str.starts_with("forest")), left_on="ps_partkey", right_on="p_partkey", how="semi"
        )
        .join(shipped, left_on=["ps_partkey", "ps_suppkey"], right_on=["l_partkey", "l_suppkey"])
        .filter(c("ps_availqty") > c("needed"))
    )
    return (
        t.supplier.join(t.nation.filter(c("n_name") == "CANADA"), left_on="s_nationkey", right_on="n_nationkey")
        .join(surplus, left_on="s_suppkey", right_on="ps_suppkey", how="semi")
        .select("s_name", "s_address")
        .sort("s_name")
    )


def q21(t: Tables) -> pl.LazyFrame:
    """Suppliers who alone were late in an order of several."""
    several = t.lineitem.group_by("l_orderkey").agg(suppliers=c("l_suppkey").n_unique()).filter(c("suppliers") > 1)
    late = t.lineitem.filter(c("l_receiptdate") > c("l_commitdate")).select("l_orderkey", "l_suppkey")
    alone = late.group_by("l_orderkey").agg(late=c("l_suppkey").n_unique()).filter(c("late") == 1)
    return (
        late.join(several, on="l_orderkey")
        .join(alone, on="l_orderkey")
        .join(t.supplier, left_on="l_suppkey", right_on="s_suppkey")
        .join(t.nation, left_on="s_nationkey", right_on="n_nationkey")
        .join(t.orders, left_on="l_orderkey", right_on="o_orderkey")
        .filter(c("o_orderstatus") == "F", c("n_name") == "SAUDI ARABIA")
        .group_by("s_name")
        .agg(numwait=pl.len())
        .sort("numwait", "s_name", descending=[True, False])
        .head(100)
    )


def q22(t: Tables) -> pl.LazyFrame:
    """Customers of some countries with much money and no order."""
    some = t.customer.select("c_custkey", "c_acctbal", cntrycode=c("c_phone").str.slice(0, 2)).filter(
        c("cntrycode").is_in(["13", "31", "23", "29", "30", "18", "17"])
    )
    mean = some.filter(c("c_acctbal") > 0).select(mean=c("c_acctbal").mean())
    return (
        some.join(t.orders, left_on="c_custkey", right_on="o_custkey", how="anti")
        .join(mean, how="cross")
        .filter(c("c_acctbal") > c("mean"))
        .group_by("cntrycode")
        .agg(numcust=pl.len(), totacctbal=c("c_acctbal").sum())
        .sort("cntrycode")
    )


QUERIES: dict[int, Callable[[Tables], pl.LazyFrame]] = {n: globals()[f"q{n}"] for n in range(1, 23)}
