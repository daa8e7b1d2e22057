"""Before numpy is imported: one BLAS thread, for the tests and for the processes that they start.

Matrices are small and tests are many: threads that wait for each other make them several times as
slow.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
