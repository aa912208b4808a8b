"""Writes linalg.json: see cases.py."""

import itertools

import numpy as np
from cases import DTYPES, case, make, rng, strided, write

LETTERS = "abcdeXYZ"


def definite(dtype, shape):
    """Returns matrices whose lower triangles are those of positive definite matrices."""
    x = make(dtype, shape)
    if x.dtype.kind in "fc":
        x = (x @ x.conj().swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)
    else:
        x = np.broadcast_to(np.eye(shape[-1]), shape).astype(dtype)
        if dtype not in ("bool", "uint8"):
            x = (x * 40 + np.tri(shape[-1], k=-1) * rng.integers(-3, 4, shape)).astype(dtype)
    x = np.array(x, order="C")
    x[..., 0, 1:] = 7  # is not read
    return x


def numpys(f, *args, **named):
    try:
        return f(*args, **named)
    except (ValueError, np.linalg.LinAlgError):
        return None


for d in DTYPES:
    for shape in [(1, 1), (3, 3), (2, 0, 4, 4), (2, 3, 5, 5), (0, 0), (40, 40), (2, 34, 34)]:
        x = definite(d, shape) if shape[-1] else np.zeros(shape, d)
        case("array.cholesky", [strided(x)], np.linalg.cholesky(x), exact=False)
    for e in DTYPES:
        for sa, sb in [
            ((3, 3), (3,)),
            ((3, 3), (3, 2)),
            ((2, 1, 3, 3), (4, 3, 2)),
            ((2, 3, 3), (3,)),
            ((1, 1), (1,)),
            ((0, 0), (0, 2)),
            ((2, 2), (2, 0)),
            ((3, 3), (2, 3, 1)),
        ]:
            a, b = make(d, sa), make(e, sb)
            a = (a + 3 * np.eye(sa[-1]).astype(d)[::-1]).astype(d)
            if d in ("bool", "uint8", "int32", "int64"):
                a = np.broadcast_to(np.eye(sa[-1]).astype(d)[::-1], sa).copy()
            case("array.solve", [strided(a), strided(b)], np.linalg.solve(a, b), exact=False)
for d in ["float32", "float64", "complex64", "complex128"]:
    for n, columns in [(40, 3), (34, 34), (70, 1)]:
        a, b = make(d, (n, n)) + (20 * np.eye(n)[rng.permutation(n)]).astype(d), make(d, (n, columns))
        case("array.solve", [strided(a), strided(b)], np.linalg.solve(a, b), exact=False)
for a, b in [
    (np.ones((2, 2)), np.ones(2)),
    (np.ones((2, 3)), np.ones(2)),
    (np.eye(2), np.ones(3)),
    (np.eye(2), np.array(1.0)),
    (np.ones(2), np.ones(2)),
    (np.zeros((3, 2, 2)), np.ones((3, 2, 1))),
    (np.zeros((3, 2, 2)), np.ones((2, 2, 1))),
]:
    case("array.solve", [a, b], numpys(np.linalg.solve, a, b))
for x in [
    np.array([[1.0, 0], [2, 1]]),
    -np.eye(3),
    np.zeros((2, 2)),
    np.ones((2, 3)),
    np.ones(3),
    np.array([[1j, 0], [0, -1j]]),
]:
    case("array.cholesky", [x], numpys(np.linalg.cholesky, x))

# NaN and infinity reach the results, also times zero.
for d in ["float32", "float64", "complex64", "complex128"]:
    for m, k, n in [(3, 4, 5), (1, 4, 5), (4, 3, 1), (20, 30, 40)]:
        for bad in [np.nan, np.inf]:
            x, y = make(d, (m, k)), make(d, (k, n))
            x[:, 0] = 0
            y[0, 0] = bad
            case("array.matmul", [x, y], x @ y, exact=False)
            case("array.matmul", [strided(y.T), x.T], y.T @ x.T, exact=False)
    x = make(d, (30, 7))
    case("array.matmul", [x.T, x], x.T @ x, exact=False)
    case("array.matmul", [x, x.T], x @ x.T, exact=False)
    case("array.matmul", [x.T, x[:, ::-1]], x.T @ x[:, ::-1], exact=False)

sizes = {letter: 1 + i % 4 for i, letter in enumerate(LETTERS)}


def einsum(text, *operands):
    want = numpys(np.einsum, text, *operands)
    for x in operands:
        if want is not None:  # NumPy's is in the type of the result, too
            want = np.asarray(want)
    case("array.einsum", [text, *operands], want, exact=False)


def of(labels, dtype):
    return strided(make(dtype, tuple(sizes[letter] for letter in labels)))


for d in DTYPES:
    for text in """a ab ba aab->ab abab->ba abc->cb abc-> aa-> ab,bc ab,bc->ac ab,bc->ca ab,cb->ca ba,bc->ac abd,abd->a abd,dc,b->ca
            abc,abd->cd cab,dba->cdb ab,ab->ab ab,a->ba a,b a,b->ba a,a a,a,a->a ab,bc,cd,d->a abc,bcd,cda->bd aab,bcc->c ,a->a ,-> abd,cbd->ac dab,cbd->ac
            abd,cbd->ca abXd,Xcb->daXc abc,dcb->ad""".split():
        groups = text.split("->")[0].split(",")
        einsum(text, *[of(g, d) for g in groups])
for text, shapes in [
    ("...i->...", [(2, 3)]),
    ("...i->i...", [(2, 4, 3)]),
    ("i...->...", [(2, 4, 3)]),
    ("...", [(2, 3)]),
    ("...,...", [(2, 1), (3,)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
    ("...ij,...jk", [(2, 1, 3, 4), (5, 4, 2)]),
    ("i...j,j...->...i", [(2, 3, 4), (4, 3)]),
    ("i...i", [(2, 3, 2)]),
    ("...i,i...->...", [(2, 3), (3, 2)]),
    ("ij,ij->j", [(3, 1), (3, 4)]),
    ("i,i->", [(1,), (4,)]),
    (" i j , jk -> i k ", [(2, 3), (3, 4)]),
    ("i->...i", [(3,)]),
    ("", [()]),
    ("->", [()]),
    (",", [(), ()]),
    ("ij,jk->ik", [(3, 0), (0, 2)]),
    ("ij->i", [(3, 0)]),
    ("ij->j", [(3, 0)]),
    ("i,i,j->", [(0,), (0,), (2,)]),
    ("bij,bjk,bk->b", [(2, 20, 30), (2, 30, 7), (2, 7)]),
    ("ij,jk,kl,lm->im", [(30, 2), (2, 40), (40, 3), (3, 20)]),
    ("ijk,jil->kl", [(30, 20, 4), (20, 30, 5)]),
    ("aB,Ba", [(2, 3), (3, 2)]),
    # errors
    ("...i->i", [(2, 3)]),
    ("ii", [(1, 3)]),
    ("i..j", [(2, 3)]),
    ("ij->ij->", [(2, 3)]),
    ("ij-", [(2, 3)]),
    ("i->ii", [(3,)]),
    ("i,i", [(2,), (3,)]),
    ("i", [(2, 3)]),
    ("ijk", [(2, 3)]),
    ("ij,jk", [(2, 3)]),
    ("ij", [(2, 3), (3, 4)]),
    ("i->j", [(2,)]),
    ("i->i,i", [(2,)]),
    ("i1", [(2, 3)]),
    ("i_", [(2, 3)]),
    ("é", [(2,)]),
    ("...i...", [(2,)]),
    ("i->......", [(2,)]),
]:
    einsum(text, *[strided(make("float64", s)) for s in shapes])
for a, b in itertools.combinations(DTYPES, 2):
    einsum("ab,bc->ac", of("ab", a), of("bc", b))
    einsum("ab,b", of("ab", a), of("b", b))
    einsum("ab,b->ab", of("ab", a), of("b", b))
    einsum("a,b,a->ab", of("a", a), of("b", a), of("a", b))

# Random expressions: one to four operands of up to four axes, repeated letters and reversed orders.
for _ in range(150):
    d = str(rng.choice(["int64", "float64", "complex64"]))
    groups = ["".join(rng.choice(list(LETTERS[:6]), rng.integers(0, 5))) for _ in range(rng.integers(1, 5))]
    used = sorted(set("".join(groups)))
    out = "".join(rng.permutation(used)[: rng.integers(0, min(len(used), 4) + 1)])
    text = ",".join(groups) + ("->" + out if rng.integers(4) else "")
    if len(text.split("->")[0]) and "->" not in text and sum("".join(groups).count(u) == 1 for u in used) > 5:
        continue
    einsum(text, *[of(g, d) for g in groups])

write(__file__)
