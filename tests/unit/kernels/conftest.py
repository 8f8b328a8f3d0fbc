"""The kernels' tests need two kinds of process, and triton takes its choice when it is first imported.

With TRITON_INTERPRET=1 the tests of `interpreted/` are collected: kernels run on the CPU, one program at a time, and
are compared with the reference. Without it (an ordinary run of all tests) the kernels are compiled for GPUs that need
not be there, and `test_interpreter.py` starts the interpreted tests in a process of their own, so that no other test
ever shares a process with an interpreted triton. To work on one of them:

    TRITON_INTERPRET=1 pytest tests/unit/kernels/interpreted/test_paged_attention.py
"""

import os

collect_ignore_glob = ["test_*.py"] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted/*"]
