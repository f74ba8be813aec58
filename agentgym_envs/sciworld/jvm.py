"""One Java process: started with a deadline, watched, and ended with the process that started it."""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from agentgym_envs.core import Fault
from agentgym_envs.sciworld.bridge import BridgeError, Connection
from agentgym_envs.sciworld.packages import JAVA_ADVICE, gateway_jar, simulator_jar

_COLLECTIONS = 3  # compiled code that has gone cold holds objects until the third
_STDERR_BYTES = 500
_END_SECONDS = 10.0
_HEAP_FULL = 3  # what ExitOnOutOfMemoryError exits with
# Set by users for their own programs; here they would change speed, memory and texts.
_FOREIGN_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


class Settings(NamedTuple):
    """How a Java process is started.

    Attributes:
        java: The program.
        heap_mb: Largest heap.
        code_mb: Largest amount of compiled code.
        start_seconds: What its start may take.
        call_seconds: What the answer to a call may take.
    """

    java: Path
    heap_mb: int
    code_mb: int
    start_seconds: float
    call_seconds: float


def flags(settings: Settings) -> list[str]:
    """Return Java's options."""
    young = max(16, settings.heap_mb // 10)  # more is not faster for one environment, but it is for eight
    return [
        "-XX:+UnlockExperimentalVMOptions",  # before those that some version of Java counts among them
        f"-Xmx{settings.heap_mb}m",
        f"-Xms{2 * young}m",
        f"-Xmn{young}m",
        "-XX:MaxHeapFreeRatio=40",  # what a collection leaves free goes back to the system (see Simulator.trim)
        # It goes on for days to compile what is used once in a hundred episodes. What has not been used for a while
        # is to go, which by default happens only where the space gets scarce.
        "-XX:NmethodSweepActivity=1000",
        f"-XX:ReservedCodeCacheSize={settings.code_mb}m",
        "-XX:+IgnoreUnrecognizedVMOptions",  # the next one is of Java 17.0.9, 21.0.1 and later
        "-XX:TrimNativeHeapInterval=1000",  # in ms: what the compiler used goes back to the system
        "-XX:+UseSerialGC",  # the other collectors keep more, and threads of their own
        "-XX:+ExitOnOutOfMemoryError",  # a full heap is a death that is noticed, not a state of unknown damage
        # What Java itself has to say; the first lines of its standard output are for us.
        "-Xlog:disable",
        "-Xlog:all=warning:stderr",
        "-XX:+DisplayVMOutputToStderr",
        "-XX:-UsePerfData",  # writes a file to the temporary folder
        "-XX:-CreateCoredumpOnCrash",
        f"-XX:ErrorFile={os.devnull}",
        "-Duser.language=en",
        "-Duser.country=US",
        "-Dfile.encoding=UTF-8",
        # The simulator's random generator is saved and put back when the valid actions are listed.
        "--add-opens=java.base/java.util=ALL-UNNAMED",
        # The simulator goes through sets of things in the order of their hashes. The class of nearly all of them
        # gets one of its own (see `classfile`); the rest have Java's, which is drawn at random. With this, it is 1.
        "-XX:hashCode=2",
    ]


class Jvm:
    """A Java process that serves objects over a loopback port that the system chooses.

    It reads its standard input and ends at the end of file, so also when this process dies in any way.
    """

    def __init__(self, settings: Settings) -> None:
        """Start the process and wait until it serves.

        Raises:
            Fault: If it does not, within `settings.start_seconds`.
        """
        self.settings = settings
        self._owner = os.getpid()
        self._stderr = tempfile.TemporaryFile()
        command = [str(settings.java), *flags(settings), "-classpath", str(gateway_jar())]
        command += ["py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"]
        environment = {name: value for name, value in os.environ.items() if name not in _FOREIGN_OPTIONS}
        environment["MALLOC_ARENA_MAX"] = "1"  # else the C library keeps free memory for each thread
        try:
            self._process = subprocess.Popen(
                command,
                cwd=simulator_jar().parent,  # where the simulator looks for its table of types; elsewhere it writes one
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=environment,
                process_group=0,  # Ctrl-C is for this process; Java would end by it
            )
        except OSError as error:
            self._stderr.close()
            raise Fault("start", f"Java ({settings.java}) cannot be started: {error}. {JAVA_ADVICE}") from error
        self._lost = False
        self._how = "it is being ended"
        self._ending = threading.RLock()  # reentrant: a garbage collection may end it once more
        self._connections: set[Connection] = set()
        try:
            port, self._token = self._first_lines(2, settings.start_seconds)
            self._port = int(port)
            self._silence()
        except BaseException:
            self.end()
            raise

    @property
    def alive(self) -> bool:
        """Whether it runs, as far as is known, and belongs to this process."""
        return not self._lost and self._owner == os.getpid() and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def connect(self) -> Connection:
        """Open a connection.

        Raises:
            Fault: If that is not possible.
        """
        if not self.alive:
            raise Fault("died", f"the Java process has died ({self._how_it_ended()})")
        try:
            connection = Connection(self._port, self._token, self.settings.call_seconds)
        except BridgeError as error:
            raise self.broken(error) from error
        self._connections.add(connection)
        return connection

    def disconnect(self, connection: Connection) -> None:
        """Close a connection."""
        self._connections.discard(connection)
        connection.close()

    def broken(self, error: BridgeError) -> Fault:
        """Give the process up after a connection broke or was not answered, and say why as a fault."""
        if self._owner != os.getpid():
            return Fault("died", "the Java process belongs to the process that this one was forked from")
        if error.timed_out:
            fault = Fault("timeout", f"the Java process gave {error}")
        else:
            try:
                self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                pass  # it lives, but cannot be talked to
            fault = Fault("died", f"the Java process has died ({self._how_it_ended()}): {error}")
        self.end()
        return fault

    def live_heap_kb(self) -> float:
        """Return what is alive in the heap, after garbage collections."""
        connection = self.connect()
        try:
            runtime = connection.call("java.lang.Runtime", "getRuntime")
            for _ in range(_COLLECTIONS):
                connection.call("java.lang.System", "gc")
            total, free = connection.calls((runtime, "totalMemory"), (runtime, "freeMemory"))
            connection.release(runtime)
        except BridgeError as error:
            raise self.broken(error) from error
        finally:
            self.disconnect(connection)
        return float(total - free) / 1024

    def end(self) -> None:
        """Kill the process and free what it held here; a second call does nothing."""
        with self._ending:
            if self._lost:
                return
            self._lost = True
            for connection in list(self._connections):
                self.disconnect(connection)
            self._process.kill()
            self._process.wait(_END_SECONDS)
            self._how = self._exit()
            self._close_files()

    def forget(self) -> None:
        """In a forked process: close the files, which are the parent's, and leave the Java process alone."""
        self._lost = True
        self._how = "it belongs to another process"
        self._process.returncode = 0  # nothing to wait for here
        self._ending = threading.RLock()  # another thread of the parent may have held it
        for connection in self._connections:
            connection.forget()
        self._close_files()

    def _first_lines(self, count: int, seconds: float) -> list[str]:
        """Read the first lines that it prints, within a time."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        data = b""
        while data.count(b"\n") < count:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise Fault("start", f"Java ({self.settings.java}) did not start within {seconds:g} s{self._said()}")
            part = os.read(self._process.stdout.fileno(), 4096)
            if not part:
                self._process.wait(_END_SECONDS)
                raise Fault("start", f"Java ({self.settings.java}) ended at its start{self._said()}. {JAVA_ADVICE}")
            data += part
        return data.decode().splitlines()[:count]

    def _silence(self) -> None:
        """Drop what the simulator prints, which is a lot; nobody reads it and it would block a full pipe."""
        connection = self.connect()
        try:
            nowhere = connection.call("java.io.OutputStream", "nullOutputStream")
            connection.call("java.lang.System", "setOut", connection.new("java.io.PrintStream", nowhere))
        except BridgeError as error:
            raise self.broken(error) from error
        finally:
            self.disconnect(connection)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _how_it_ended(self) -> str:
        if self._lost:
            return self._how
        return self._exit()

    def _exit(self) -> str:
        status = self._process.poll()
        full = f", its heap of {self.settings.heap_mb} MB was full" if status == _HEAP_FULL else ""
        return f"exit status {status}{full}{self._said()}"

    def _said(self) -> str:
        """The end of what it wrote to its standard error."""
        # Read where it is: the process writes at the same position of the same open file.
        size = os.fstat(self._stderr.fileno()).st_size
        text = os.pread(self._stderr.fileno(), _STDERR_BYTES, max(0, size - _STDERR_BYTES)).decode(errors="replace")
        return f"; it said: {' '.join(text.split())}" if text else ""

    def _close_files(self) -> None:
        for file in (self._process.stdin, self._process.stdout, self._stderr):
            assert file is not None
            file.close()
