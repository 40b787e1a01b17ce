"""A program that installs PyFlink with Parquet support in a separate environment.

    python -m benchmarks.nexmark.flink_setup [DIR]

`make nexmark-flink` runs it with .flink. It needs a JDK. The jars are fetched with the Ivy that
pyspark contains. Packages and jars that are already installed are not fetched again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PYFLINK = "apache-flink==2.3.0"
# Group, artifact, version; fetched without transitive dependencies.
JARS = (
    ("org.apache.flink", "flink-sql-parquet", "2.3.0"),
    ("org.apache.hadoop", "hadoop-client-api", "3.3.6"),
    ("org.apache.hadoop", "hadoop-client-runtime", "3.3.6"),
    ("commons-logging", "commons-logging", "1.2"),
    ("com.google.code.findbugs", "jsr305", "3.0.2"),
    ("org.slf4j", "slf4j-api", "1.7.36"),
    ("org.xerial.snappy", "snappy-java", "1.1.10.5"),
)
SETTINGS = """<ivysettings><settings defaultResolver="central"/>
<resolvers><ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>"""
ASSIGNER = Path(__file__).parent / "LocalityAwareSplitAssigner.java"


def run(*command: str | Path) -> None:
    """Run a command; print its output and exit if it fails."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        output = (done.stdout + done.stderr).strip()[-2000:]
        sys.exit(f"{output}\nerror: {' '.join(str(part) for part in command[:4])} … failed")


def lib_of(home: Path) -> Path:
    """Return the directory of Flink's jars in its environment."""
    return next((home / "venv").glob("lib/python3*/site-packages/pyflink/lib"))


def install_python(home: Path) -> None:
    """Create the Python environment and install PyFlink."""
    if list((home / "venv").glob("lib/python3*/site-packages/pyflink/lib")):
        return
    print(f"installing {PYFLINK} …", flush=True)
    run(sys.executable, "-m", "venv", home / "venv")
    run(home / "venv/bin/python", "-m", "pip", "install", "-q", "wheel", "setuptools<81")
    run(home / "venv/bin/python", "-m", "pip", "install", "-q", PYFLINK)


def fetch_jars(home: Path) -> None:
    """Fetch the jars that Flink needs to read Parquet."""
    import pyspark

    shipped = Path(pyspark.__file__).parent / "jars"
    path = ":".join(
        str(next(shipped.glob(pattern))) for pattern in ("ivy-*.jar", "commons-cli-*.jar")
    )
    settings = home / "ivysettings.xml"
    settings.write_text(SETTINGS, "utf-8")
    lib = lib_of(home)
    for group, artifact, version in JARS:
        if (lib / f"{artifact}-{version}.jar").exists():
            continue
        print(f"fetching {artifact} {version} …", flush=True)
        run(
            *("java", "-cp", path, "org.apache.ivy.Main", "-settings", settings),
            *("-cache", home / "ivy", "-dependency", group, artifact, version),
            *("-confs", "default", "-m2compatible", "-notransitive"),
            *("-retrieve", f"{lib}/[artifact]-[revision](-[classifier]).[ext]"),
        )


def sort_files(home: Path) -> None:
    """Replace Flink's split assigner with one that orders files by name."""
    jar = next(lib_of(home).glob("flink-connector-files-*.jar"))
    with tempfile.TemporaryDirectory() as build:
        path = ":".join(str(file) for file in lib_of(home).glob("*.jar"))
        run("javac", "-nowarn", "-cp", path, "-d", build, ASSIGNER)
        run("jar", "uf", jar, "-C", build, "org")


def main() -> None:
    home = Path(sys.argv[1] if len(sys.argv) > 1 else ".flink").absolute()
    for tool in ("java", "javac", "jar"):
        if shutil.which(tool) is None:
            sys.exit(f"error: {tool} was not found: install a JDK, version 17 or newer")
    home.mkdir(parents=True, exist_ok=True)
    install_python(home)
    fetch_jars(home)
    sort_files(home)
    print(f"Flink is installed in {home}")


if __name__ == "__main__":
    main()
