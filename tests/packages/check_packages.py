# SPDX-License-Identifier: Apache-2.0
"""Looks into the packages that tools/package made, and uses them as somebody who has nothing else of Trireme.

check_packages.py contents|deb|archive --packages FOLDER --source FOLDER --version VERSION --compiler PROGRAM

`deb` and `archive` install the package in a copy of this system (clean_root.py), where the folder of the sources with all
builds is empty and LibTorch lies in a folder of its own. There they build and run tests/consumer/project.
Ends with 77 (skipped), and says why, where such a copy cannot be made.
"""
import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from clean_root import CleanRoot, NotPossible, run

SKIPPED = 77
EXPECTED = """
bin/trireme include/trireme/trireme.h include/trireme/version.h lib/libtrireme_base.a lib/libtrireme_comm.a
lib/libtrireme_parallel.a lib/libtrireme_train.a lib/cmake/Trireme/TriremeConfig.cmake
lib/cmake/Trireme/TriremeConfigVersion.cmake lib/cmake/Trireme/TriremeTargets.cmake lib/pkgconfig/trireme.pc
lib/trireme/trireme_torch.so share/bash-completion/completions/trireme
share/fish/vendor_completions.d/trireme.fish share/doc/trireme/guide/first-steps.md share/doc/trireme/copyright
""".split()
# LibTorch's own, which no package of Debian has.
LIBTORCH = re.compile(r"lib(torch|torch_cpu|torch_cuda|c10|c10_cuda)\.so")


def paths_in(folder, kind="*"):
    return sorted(path for path in folder.rglob(kind) if path.is_file() and not path.is_symlink())


def check_files(root, program, source):
    """`root` has the folders bin, include, lib and share."""
    findings = [f"{path} is missing" for path in EXPECTED if not (root / path).is_file()]
    names = {path.name for path in paths_in(root)}
    pages = {path for path in names if re.fullmatch(r"trireme(-\w+)*\.1(\.gz)?", path)}
    commands = re.findall(r"^  (\w+)", run(program, "--help").partition("Subcommands:")[2], re.MULTILINE)
    findings += [f"the man page of trireme {name} is missing" for name in commands
                 if not pages & {f"trireme-{name}.1", f"trireme-{name}.1.gz"}]
    findings += ["the completion for zsh is missing"] * ("_trireme" not in names)
    headers = {str(path.relative_to(root / "include")) for path in paths_in(root / "include", "*.h")}
    for header in sorted(headers):
        text = (root / "include" / header).read_text()
        findings += [f"{header} includes {other}, which is not installed"
                     for other in re.findall(r"^#include <(trireme/[^>]+)>", text, re.MULTILINE) if other not in headers]
    shown = [source / "README.md", *(source / "docs").rglob("*.md"), *(source / "examples").rglob("*.cpp"),
             *(source / "examples").rglob("*.h")]
    for path in shown:
        findings += [f"{path} includes {header}, which is not installed"
                     for header in re.findall(r"^#include <(trireme/[^>]+)>", path.read_text(), re.MULTILINE) if header not in headers]
    for path in [*paths_in(root, "*.cmake"), *paths_in(root, "*.pc"), *paths_in(root / "share")]:
        if str(source) in path.read_text(errors="replace"):
            findings.append(f"{path.relative_to(root)} names the folder {source}")
    for path in elf_files(root):
        runpath = re.findall(r"R(?:UN)?PATH.*\[(.*)\]", run("readelf", "-d", path))
        if any(str(source) in entry for entry in runpath):
            findings.append(f"{path.relative_to(root)} looks for libraries in {runpath}")
    return findings


def elf_files(root):
    return [path for path in paths_in(root) if path.read_bytes()[:4] == b"\x7fELF" and path.suffix != ".o"]


def needed_by(path):
    return {name for name in re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", path)) if not LIBTORCH.match(name)}


def names_of(field):
    """The names in a list of dependencies, without versions and with all alternatives."""
    return re.findall(r"[a-z0-9][a-z0-9+.-]+", re.sub(r"\([^)]*\)|:any", "", field))


def package_of(library):
    """The package that has a shared object."""
    path = next((line.split(" => ")[1] for line in run("/sbin/ldconfig", "-p").splitlines()
                 if line.strip().startswith(library + " ")), None)
    shown = subprocess.run(["dpkg", "-S", *{path, str(Path(path).resolve()), path.removeprefix("/usr")}],
                           capture_output=True, text=True, check=False) if path else None
    found = re.findall(r"^([a-z0-9+.-]+)(?::\w+)?: ", shown.stdout, re.MULTILINE) if shown else []
    return found[0] if found else None


def check_dependencies(deb, root, version):
    fields = {name: run("dpkg-deb", "-f", deb, name).strip() for name in ("Version", "Depends", "Recommends")}
    findings = [] if fields["Version"] == version else [f"the package is version {fields['Version']}, expected {version}"]
    given = set(names_of(fields["Depends"]))
    with_recommended = given | set(names_of(fields["Recommends"]))
    for path in elf_files(root):
        allowed = with_recommended if path.name == "trireme_mpi.so" else given
        for library in sorted(needed_by(path)):
            package = package_of(library)
            if package not in allowed:
                findings.append(f"{path.name} needs {library} of {package}, which is not among {fields['Depends']}")
    # What a program that links the static libraries needs besides.
    targets = (root / "lib/cmake/Trireme/TriremeTargets.cmake").read_text()
    for library in sorted(set(re.findall(r"-l:([\w.+-]+)", targets))):
        package = package_of(library)
        if package not in given:
            findings.append(f"programs need {library} of {package}, which is not among {fields['Depends']}")
    return findings


def contents(options):
    findings = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run("tar", "-xf", archive_of(options), "-C", folder, "--strip-components", "1", "--one-top-level=archive")
        findings += check_files(folder / "archive", folder / "archive/bin/trireme", options.source)
        deb = deb_of(options)
        if deb:
            run("dpkg-deb", "-x", deb, folder / "deb")
            findings += check_files(folder / "deb/usr", folder / "deb/usr/bin/trireme", options.source)
            findings += check_dependencies(deb, folder / "deb/usr", options.version)
    return findings


def archive_of(options):
    return next(options.packages.glob("trireme-*.tar.xz"))


def deb_of(options):
    return next(options.packages.glob("trireme_*.deb"), None)


def use(root, program, options, cmake_options=(), environment=None):
    """Builds the consumer by CMake and runs it."""
    assert root.run(program, "--version") == f"trireme {options.version}\n"
    root.run("cmake", "-S", "/srv/project", "-B", "/srv/build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
             f"-DCMAKE_CXX_COMPILER={options.compiler}", *cmake_options, environment=environment)
    root.run("cmake", "--build", "/srv/build")
    output = root.run(program, "run", "-n", "2", "--", "/srv/build/consumer", environment=environment)
    assert "weights of all ranks" in output, output


def deb(options):
    package = deb_of(options)
    if package is None:
        raise NotPossible("no Debian package was made, because dpkg-shlibdeps is missing")
    with CleanRoot(options.source) as root:
        root.copy(package, "/srv/trireme.deb")
        root.copy(options.source / "tests/consumer/project", "/srv/project")
        root.install_package("/srv/trireme.deb")
        failure = root.fails("trireme", "run", "-n", "1", "--", "true")
        assert "TRIREME_TORCH_DIR" in failure, failure  # no LibTorch yet
        root.add_libtorch("/opt/libtorch")
        use(root, "trireme", options)
        flags = root.run("pkg-config", "--cflags", "--libs", "trireme").split()
        root.run(options.compiler, "/srv/project/main.cpp", "-o", "/srv/by_pkg_config", *flags)
        root.run("trireme", "run", "-n", "2", "--", "/srv/by_pkg_config")
        root.run("bash", "-c", "source /usr/share/bash-completion/completions/trireme && complete -p trireme")
        assert "several processes" in root.run("man", "-P", "cat", "trireme-run")
        root.run("dpkg", "--purge", "trireme")
        left = root.run("bash", "-c", "find /usr /etc -name '*trireme*' -not -path '*/python*'")
        assert left == "", f"purging leaves {left}"
    return []


def archive(options):
    with CleanRoot(options.source) as root:
        root.copy(archive_of(options), "/srv/trireme.tar.xz")
        root.copy(options.source / "tests/consumer/project", "/srv/project")
        root.add_libtorch("/srv/own_torch")
        root.run("bash", "-c", "mkdir /srv/first && tar -xf /srv/trireme.tar.xz -C /srv/first && mv /srv/first/* /srv/moved")
        use(root, "/srv/moved/bin/trireme", options, environment={"TRIREME_TORCH_DIR": "/srv/own_torch"},
            cmake_options=["-DCMAKE_PREFIX_PATH=/srv/moved", "-DTorch_DIR=/srv/own_torch/share/cmake/Torch"])
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("what", choices=("contents", "deb", "archive"))
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--compiler", required=True)
    options = parser.parse_args()
    try:
        findings = {"contents": contents, "deb": deb, "archive": archive}[options.what](options)
    except NotPossible as reason:
        print(f"skipped: {reason}")
        return SKIPPED
    print("\n".join(findings) or f"{options.what}: in order")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
