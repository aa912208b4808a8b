"""Cases for array.qr and array.svd. See cases.py.

NumPy does not define the signs of the rows of r and of the singular vectors, and they differ
between methods. Matrices of whole numbers are tall, so that they have full rank: otherwise some
vectors would not be defined either.
"""

from cases import *

TOLERANT = {"exact": False, "signs": True}
SHAPES = [(1, 1), (5, 1), (1, 5), (4, 4), (9, 3), (3, 9), (20, 17), (17, 20), (70, 4)]

for dtype in [d for d in DTYPES if not d.startswith("complex")]:
    for shape in SHAPES if dtype.startswith("float") else [(30, 5)]:
        x = strided(make(dtype, shape))
        q, r = np.linalg.qr(x)
        case("array.qr", [x], [q, r], **TOLERANT)
        case("array.qr", [x], r, mode="r", **TOLERANT)
        u, s, vt = np.linalg.svd(x, full_matrices=False)
        case("array.svd", [x], [u, s, vt], **TOLERANT)
        case("array.svd", [x], s, vectors=False, exact=False)

for shape in [(0, 0), (0, 4), (4, 0)]:
    x = np.zeros(shape)
    case("array.qr", [x], list(np.linalg.qr(x)))
    case("array.qr", [x], np.linalg.qr(x, mode="r"), mode="r")
    case("array.svd", [x], list(np.linalg.svd(x, full_matrices=False)))
    case("array.svd", [x], np.linalg.svd(x, compute_uv=False), vectors=False)

# Of a matrix without full rank, only r's first rows and the singular values are defined.
low = make("float64", (50, 3)) @ make("float64", (3, 8))
for x in [low, low.T, np.zeros((6, 4)), np.ones((20, 20))]:
    case("array.svd", [x], np.linalg.svd(x, compute_uv=False), vectors=False, exact=False)

for wrong in [np.nan, np.inf]:
    x = make("float64", (6, 4))
    x[2, 3] = wrong
    case("array.svd", [x], None)
    case("array.svd", [x], None, vectors=False)
case("array.qr", [make("float64", (4,))], None)
case("array.qr", [make("float64", (4, 4))], None, mode="full")

write(__file__)
