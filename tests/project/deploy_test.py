"""Checks the files of deploy/, the flags that docs/server.md names, and scripts/quickstart --serve.

Uses systemd-analyze, hadolint and nginx if they are installed; the other checks need only `shoal` (SHOAL_PROGRAM).
"""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PROGRAM = os.environ.get("SHOAL_PROGRAM", str(ROOT / "build/release/bin/shoal"))
CONTAINERFILES = sorted(path for path in DEPLOY.glob("Containerfile.*") if path.suffix != ".dockerignore")
# Flags of podman, docker and other programs that the text names in backticks.
OF_OTHERS = {"-v", "--device", "--gpus", "--health-on-failure", "--ignorefile", "--secret", "--serve", "--shm-size"}
FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]+|-[a-z]{1,3})(?=[\s=\"',`]|$)")


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          check=False)


def tool(test, name):
    """The path of a linter; skips the test if it is not installed."""
    path = shutil.which(name) or shutil.which(name, path=f"{ROOT / 'build/venv/bin'}:/usr/sbin")
    if path is None:
        test.skipTest(f"{name} is not installed")
    return path


def joined_lines(text):
    """The lines of a text; a backslash joins a line with the next one."""
    return re.sub(r"\\\n\s*", " ", text).splitlines()


def flags_of_serve(line):
    """The flags of `shoal serve` in a line: after the command, the image or SERVE_FLAGS=, otherwise in backticks without a
    command."""
    if found := re.search(r"(?:shoal\", \"serve|shoal serve|SERVE_FLAGS=|shoal:(?:cpu|cuda)(?! \.))(.*)", line):
        return FLAG.findall(re.split(r"[`#]", found[1])[0])
    return [word for quoted in re.findall(r"`(-[^`]+)`", line) for word in FLAG.findall(quoted) if word not in OF_OTHERS]


def texts_with_flags():
    pages = [*DEPLOY.glob("*.md"), *DEPLOY.glob("shoal.*"), *CONTAINERFILES, DEPLOY / "nginx.conf"]
    pages.append(ROOT / "docs/server.md")
    return {page: joined_lines(page.read_text()) for page in pages}


class FlagsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        help_text = run(PROGRAM, "serve", "--help").stdout
        cls.known = set(FLAG.findall(re.sub(r"[,|/]", " ", help_text)))

    def test_serve_has_all_flags(self):
        self.assertIn("--api-key-file", self.known)
        for page, lines in texts_with_flags().items():
            for line in lines:
                for flag in flags_of_serve(line):
                    with self.subTest(page=page.name, line=line.strip()):
                        self.assertIn(flag, self.known, f"`shoal serve` has no flag {flag}")

    def test_flags_are_found(self):
        for line, flags in {
            "ExecStart=/opt/shoal/bin/shoal serve --api-key-file %d/api_key $F": ["--api-key-file"],
            'ENTRYPOINT ["/opt/shoal/bin/shoal", "serve", "--host", "0.0.0.0"]': ["--host"],
            "podman run -d shoal:cpu -hf OWNER/REPO": ["-hf"],
            "| the body is larger than `--max-body` | 413 |": ["--max-body"],
            "equal `shoal run --top-logits`": [],
            "podman build --ignorefile x -t shoal:cpu .": [],
        }.items():
            with self.subTest(line):
                self.assertEqual(flags_of_serve(line), flags)

    def test_each_file_contains_flags(self):
        for name in ("shoal.service", "shoal.env", "README.md", "Containerfile.cpu", "Containerfile.cuda"):
            with self.subTest(name):
                self.assertTrue(any(map(flags_of_serve, joined_lines((DEPLOY / name).read_text()))))


class UnitTest(unittest.TestCase):
    def setUp(self):
        self.unit = (DEPLOY / "shoal.service").read_text()

    def verify(self, text):
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder) / "shoal.service"
            unit.write_text(text)
            done = run(tool(self, "systemd-analyze"), "verify", "--man=no", unit)
            return done.returncode, [line for line in done.stderr.splitlines() if "shoal.service" in line]

    def test_systemd_accepts_unit(self):
        # The verification also searches for the program.
        self.assertEqual(self.verify(self.unit.replace("/opt/shoal/bin/shoal", "/bin/true")), (0, []))

    def test_systemd_rejects_wrong_unit(self):
        changed = self.unit.replace("/opt/shoal/bin/shoal", "/bin/true").replace("ProtectSystem=", "ProtectSystems=")
        self.assertNotEqual(self.verify(changed)[1], [])

    def test_variables_are_set(self):
        environment = (DEPLOY / "shoal.env").read_text()
        for variable in re.findall(r"\$(\w+)", self.unit):
            self.assertRegex(environment, rf"(?m)^{variable}=", "shoal.env does not set the variable")

    def test_program_knows_variables(self):
        page = (ROOT / "CONTRIBUTING.md").read_text()
        for variable in re.findall(r"(?m)^#?(SHOAL_\w+)=", (DEPLOY / "shoal.env").read_text()):
            self.assertIn(f"`{variable}=", page, "CONTRIBUTING.md does not list the variable")


class ContainersTest(unittest.TestCase):
    def stages(self, path):
        """The instructions of each stage: [(instruction, arguments), ...]."""
        stages = []
        for line in joined_lines(re.sub(r"(?m)^\s*#.*\n", "", path.read_text())):
            word, _, rest = line.partition(" ")
            if word == "FROM":
                stages.append([])
            if stages and word:
                stages[-1].append((word, rest))
        return stages

    def test_hadolint_accepts_files(self):
        for path in CONTAINERFILES:
            done = run(tool(self, "hadolint"), "--no-color", path)
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_images_have_user_check_and_port(self):
        self.assertEqual([path.name for path in CONTAINERFILES], ["Containerfile.cpu", "Containerfile.cuda"])
        for path in CONTAINERFILES:
            with self.subTest(path.name):
                final = dict(self.stages(path)[-1])
                self.assertNotIn(final["USER"], ("", "0", "root"))
                self.assertEqual(final["EXPOSE"], "8080")
                self.assertIn("/health", final["HEALTHCHECK"])
                entry = shlex.split(final["ENTRYPOINT"].strip("[]").replace(",", " "))
                self.assertEqual(entry[entry.index("--port") + 1], "8080")

    def test_contexts_omit_build_folders(self):
        for path in CONTAINERFILES:
            ignored = path.with_name(path.name + ".dockerignore").read_text().split()
            self.assertLessEqual({"build", ".venv"}, set(ignored))

    def test_image_has_libraries_of_program(self):
        release = pathlib.Path("/etc/os-release").read_text().splitlines()
        if not {"ID=debian", 'VERSION_ID="12"'} <= set(release) or not shutil.which("dpkg-query"):
            self.skipTest("the names of packages are known only on Debian 12")
        if "asan" in (libraries := run("ldd", PROGRAM).stdout):
            self.skipTest("programs with sanitizers need other libraries")
        packages = set()
        for path in re.findall(r"=> (/\S+)", libraries):
            names = [path, "/usr" + path, os.path.realpath(path)]
            owner = next((text for name in names if (text := run("dpkg-query", "-S", name).stdout)), "")
            packages.add(owner.split(":")[0])
        self.assertIn("libfmt9", packages)
        final = self.stages(DEPLOY / "Containerfile.cpu")[-1]
        listed = {package for word, rest in final if word == "RUN" for package in rest.split()}
        # apt-get installs the packages that libedit2 and libhwloc15 need.
        needed = {"libbsd0", "libmd0", "libtinfo6", "libudev1", "libc6", "libgcc-s1"}
        self.assertEqual(packages - listed - needed, set())


class ProxyTest(unittest.TestCase):
    def test_nginx_accepts_configuration(self):
        nginx, openssl = tool(self, "nginx"), tool(self, "openssl")
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            run(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", folder / "key", "-out",
                folder / "certificate", "-days", "1", "-subj", "/CN=models.example.org")
            text = (DEPLOY / "nginx.conf").read_text()
            text = re.sub(r"ssl_certificate [^;]+", f"ssl_certificate {folder}/certificate", text)
            text = re.sub(r"ssl_certificate_key [^;]+", f"ssl_certificate_key {folder}/key", text)
            text = re.sub(r"listen (\S*?)443", r"listen \g<1>18949", text)  # users cannot open port 443
            kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            paths = "".join(f"{kind}_temp_path {folder}/{kind}; " for kind in kinds)
            whole = f"pid {folder}/pid; events {{}} http {{ access_log off; {paths}\n{text} }}"
            (folder / "nginx.conf").write_text(whole)
            done = run(nginx, "-t", "-p", folder, "-c", folder / "nginx.conf", "-g", "error_log stderr;")
            self.assertEqual(done.returncode, 0, done.stderr)


class QuickstartTest(unittest.TestCase):
    """Runs scripts/quickstart in a temporary folder. The programs are scripts that write their arguments to a file."""

    PROGRAMS = {
        "scripts/install_deps": "",
        "bin/nvidia-smi": '[ -e "$ROOT/gpu" ]',
        "bin/python3": """mkdir -p .venv/bin; for name in python shoal; do
            printf '#!/usr/bin/env bash\\necho "%s $*" >>"$ROOT/log"\\n' $name >.venv/bin/$name
            chmod +x .venv/bin/$name; done
            echo "python3 $*" >>"$ROOT/log" """,
    }

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        for path, text in self.PROGRAMS.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(f"#!/usr/bin/env bash\n{text}\n")
            (self.folder / path).chmod(0o755)
        for name in ("quickstart", "requirements.txt"):
            shutil.copy(ROOT / "scripts" / name, self.folder / "scripts")

    def quickstart(self, *arguments, **variables):
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "PORT")}
        environment |= {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "ROOT": str(self.folder), **variables}
        (self.folder / "log").write_text("")
        done = subprocess.run([self.folder / "scripts/quickstart", *arguments], capture_output=True, text=True,
                              check=False, stdin=subprocess.DEVNULL, env=environment)
        return done, (self.folder / "log").read_text().splitlines()

    def test_serve_installs_package_and_starts_server(self):
        done, calls = self.quickstart("--serve")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(calls[0], "python3 -m venv .venv")
        self.assertIn(f"--config-settings=build-dir={self.folder}/build/serve --config-settings=cmake.define.SHOAL_CUDA=OFF ./python", calls[2])
        self.assertRegex(calls[3], r"^shoal serve -m data/models/\S+ --devices CPU0,CPU1 --port 8080$")
        self.assertIn("curl http://127.0.0.1:8080/v1/completions", done.stderr)

    def test_port_and_existing_environment_are_used(self):
        self.quickstart("--serve")
        done, calls = self.quickstart("--serve", PORT="9000")
        self.assertNotIn("python3 -m venv .venv", calls)
        self.assertTrue(calls[-1].endswith("--port 9000"), calls)
        self.assertIn("curl http://127.0.0.1:9000/", done.stderr)

    def test_plug_in_for_cuda_needs_gpu(self):
        (self.folder / "gpu").touch()
        self.assertIn("SHOAL_CUDA=AUTO", "\n".join(self.quickstart("--serve")[1]))

    def test_unknown_arguments_are_rejected(self):
        for arguments in (["--server"], ["--serve", "--server"]):
            done, calls = self.quickstart(*arguments)
            self.assertEqual((done.returncode, calls), (2, []))
            self.assertEqual(done.stderr, "quickstart: unknown argument '--server' (known: --serve)\n")


if __name__ == "__main__":
    unittest.main()
