"""What honest programs need works in the cage: the libraries of machine learning, pools, children, threads, plots.

In the tier `landlock` there is no /dev/shm, in which semaphores lie, so that pools of processes cannot be made. What
that looks like to a program is held here too.
"""

from __future__ import annotations

import pytest
import pytest_asyncio

from mappa_core import ToolLimits
from mappa_core.sandbox import FolderWorkspace
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

MB = 1 << 20
ROOMY = ToolLimits(wall_s=240.0, cpu_s=200.0, memory_bytes=4096 * MB)
PRELOAD = ["numpy", "pandas", "sklearn.ensemble", "joblib", "matplotlib.pyplot", "multiprocessing", "sqlite3"]
FOREST = """
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
x, y = make_classification(200, random_state=0)
print(RandomForestClassifier(20, n_jobs=2, random_state=0).fit(x, y).score(x, y) > 0.9)
"""
SQUARES = "def square(x):\n    return x * x\n\n"
MAIN = "if __name__ == '__main__':\n    "
EVERYWHERE = {
    "random forest, n_jobs=2": (FOREST, "True\n"),
    "grid search, threads": (
        "from joblib import parallel_backend\nfrom sklearn.datasets import load_iris\n"
        "from sklearn.linear_model import LogisticRegression\nfrom sklearn.model_selection import GridSearchCV\n"
        "x, y = load_iris(return_X_y=True)\n"
        "with parallel_backend('threading', n_jobs=2):\n"
        "    search = GridSearchCV(LogisticRegression(max_iter=500), {'C': [0.1, 1]}, cv=3).fit(x, y)\n"
        "print(search.best_score_ > 0.9)",
        "True\n",
    ),
    "pandas": (
        "import pandas as pd\npd.DataFrame({'a': [1, 2]}).to_csv('a.csv', index=False)\n"
        "pd.DataFrame({'a': [1, 2]}).to_parquet('a.parquet')\n"
        "print(pd.read_csv('a.csv').a.sum(), pd.read_parquet('a.parquet').a.sum())",
        "3 3\n",
    ),
    "matplotlib": (
        "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\n"
        "plt.plot([1, 2])\nplt.title('x')\nplt.savefig('plot.png')\nprint(open('plot.png', 'rb').read(4)[1:])",
        "b'PNG'\n",
    ),
    "subprocess": (
        "import subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True, text=True).stdout, end='')\n"
        "print(subprocess.check_output('echo $((6 * 7)) | cat', shell=True, text=True), end='')",
        "42\n42\n",
    ),
    "tempfile": (
        "import tempfile\nwith tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile(dir=d) as f:\n"
        "    f.write(b'x')\nwith tempfile.SpooledTemporaryFile(1) as f: f.write(b'xyz')\nprint('ok')",
        "ok\n",
    ),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool: print(list(pool.map(abs, [-1, 2])))",
        "[1, 2]\n",
    ),
    "sqlite": (
        "import sqlite3\nwith sqlite3.connect('a.db') as db:\n"
        "    db.execute('pragma journal_mode=wal')\n    db.execute('create table t (x)')\n"
        "    db.execute('insert into t values (7)')\n"
        "print(sqlite3.connect('a.db').execute('select x from t').fetchone())",
        "(7,)\n",
    ),
    "asyncio": (
        "import asyncio, sys\n\nasync def main():\n    await asyncio.sleep(0.01)\n"
        "    child = await asyncio.create_subprocess_exec(sys.executable, '-c', 'print(1)', stdout=-1)\n"
        "    print((await child.communicate())[0], await asyncio.to_thread(abs, -1))\n\nasyncio.run(main())",
        "b'1\\n' 1\n",
    ),
    "pickle, zip and copies": (
        "import pickle, shutil, zipfile\npickle.dump([1], open('a.pkl', 'wb'))\n"
        "with zipfile.ZipFile('a.zip', 'w') as z: z.write('a.pkl')\nshutil.copy2('a.pkl', 'b.pkl')\n"
        "shutil.unpack_archive('a.zip', 'out')\nprint(pickle.load(open('out/a.pkl', 'rb')))",
        "[1]\n",
    ),
    "script": (
        "import os, subprocess\nopen('run.sh', 'w').write('#!/bin/sh\\necho ran\\n')\nos.chmod('run.sh', 0o755)\n"
        "print(subprocess.run(['sh', 'run.sh'], capture_output=True, text=True).stdout, end='')",
        "ran\n",
    ),
    "fork": (
        "import os\nread, write = os.pipe()\nif os.fork() == 0:\n    os.write(write, b'child')\n    os._exit(0)\n"
        "os.wait()\nprint(os.read(read, 9))",
        "b'child'\n",
    ),
    "numbers of the machine": ("import os\nprint(os.cpu_count() >= 1, os.getloadavg() is not None)", "True True\n"),
}
POOLS = {
    "multiprocessing.Pool": f"import multiprocessing\n{SQUARES}{MAIN}with multiprocessing.Pool(2) as p: "
    "print(p.map(square, range(4)))",
    "a pool of spawned processes": "import multiprocessing\n"
    f"{MAIN}with multiprocessing.get_context('spawn').Pool(2) as p: print(p.map(abs, [0, -1, -4, 9]))",
    "ProcessPoolExecutor": f"from concurrent.futures import ProcessPoolExecutor\n{SQUARES}{MAIN}"
    "with ProcessPoolExecutor(2) as p: print(list(p.map(square, range(4))))",
    "joblib, loky": f"import joblib, os\ndef square(x):\n    return x * x, os.getpid()\n\n{MAIN}"
    "done = joblib.Parallel(2)(joblib.delayed(square)(n) for n in range(4))\n"
    "    print([n for n, _ in done] if os.getpid() not in dict(map(reversed, done)) else 'serial')",
    "multiprocessing.Queue": "import multiprocessing\ndef put(q):\n    q.put([0, 1, 4, 9])\n\n"
    f"{MAIN}q = multiprocessing.Queue()\n    p = multiprocessing.Process(target=put, args=(q,))\n    p.start()\n"
    "    print(q.get())\n    p.join()",
    "multiprocessing.shared_memory": "from multiprocessing.shared_memory import SharedMemory\n"
    "block = SharedMemory(create=True, size=4)\nblock.buf[:4] = bytes([0, 1, 4, 9])\n"
    "two = SharedMemory(block.name)\nprint(list(two.buf[:4]))\ntwo.close()\nblock.close()\nblock.unlink()",
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


PLACES = {"bubblewrap": ("bubblewrap", []), "preloaded": ("bubblewrap", PRELOAD), "landlock": ("landlock", [])}


@pytest.fixture(scope="module", params=PLACES.values(), ids=PLACES)
def place(request):
    return request.param


@pytest.fixture(scope="module")
def backend(place):
    return place[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tool(place, open_cage):
    """One tool for all: what is preloaded takes seconds."""
    backend, preload = place
    tool = PythonTool(PythonOptions(sandbox=backend, preload=preload, workers=2))
    await open_cage(tool, backend)
    yield tool
    await tool.close()


@pytest.mark.parametrize("what", EVERYWHERE)
async def test_ordinary_libraries_work_in_every_tier(tool, tmp_path, what):
    code, printed = EVERYWHERE[what]
    result = await tool.call({"code": code}, FolderWorkspace(tmp_path), ROOMY)
    assert (result.status, result.stdout) == ("ok", printed), result.stderr


@pytest.mark.parametrize("what", POOLS)
async def test_pools_of_processes_work_in_bubblewrap_and_say_no_in_landlock(tool, backend, tmp_path, what):
    result = await tool.call({"code": POOLS[what]}, FolderWorkspace(tmp_path), ROOMY)
    if backend == "bubblewrap":
        assert (result.status, result.stdout) == ("ok", "[0, 1, 4, 9]\n"), result.stderr
    elif what == "joblib, loky":  # goes on in one process where no pool can be made
        assert (result.status, result.stdout) == ("ok", "serial\n"), result.stderr
    else:
        assert result.exit_code == 1
        assert result.stderr.splitlines()[-1].startswith("PermissionError: [Errno 13]"), result.stderr
