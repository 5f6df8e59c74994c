"""Opens pages in headless Chromium: ``python tests/browser.py FOLDER_OR_FILE [SCREENSHOTS]``.

Each page is opened as on a phone and on a desk; for screenshots in light and dark colours. What is wrong is
printed: a page wider than the screen, an image that does not load, a broken link, an error in the console.
"""

import contextlib
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from base64 import b64decode
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"]
SIZES = {"phone": (390, 844), "desk": (1280, 900)}
# What is wrong with a page that has loaded. A fragment may be percent-encoded.
LOOK = """(() => {
  const all = selector => [...document.querySelectorAll(selector)];
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  return {
    wrong: [
      ...(wide > 0 ? [`is ${wide} pixels too wide`] : []),
      ...(all('meta[name=viewport]').length ? [] : ['has no viewport, and so is small']),
      ...all('img').filter(i => !i.complete || !i.naturalWidth).map(i => `does not load ${i.src}`),
    ],
    links: all('a[href]').map(a => a.href),
    ids: all('[id], a[name]').flatMap(e => [e.id, e.name]).filter(Boolean),
  };
})()"""


class Browser:
    """Chromium, asked by its DevTools protocol through a pipe: messages of JSON, each before a 0."""

    def __enter__(self):
        self._folder = tempfile.mkdtemp()
        theirs, self._ours = os.pipe()
        self._answers, theirs_too = os.pipe()
        # The shell gives it the pipe as files 3 and 4, where it looks for it.
        command = ["bash", "-c", f'exec "$0" "$@" 3<&{theirs} 4>&{theirs_too}', CHROMIUM, *FLAGS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={self._folder}", "about:blank"],
            pass_fds=(theirs, theirs_too),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs), os.close(theirs_too)
        self._buffer, self._number, self._session, self.events = b"", 0, None, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()
        os.close(self._ours), os.close(self._answers)
        shutil.rmtree(self._folder, ignore_errors=True)

    def ask(self, method, **parameters):
        """Sends a command and returns its result; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._ours, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _read(self):
        while b"\0" not in self._buffer:
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise RuntimeError("Chromium ended.")
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, url, size, dark):
        """Loads a page in a window of a size (width, height); returns what LOOK finds."""
        width, height = size
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.ask("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())
        found = self.ask("Runtime.evaluate", expression=LOOK, returnByValue=True)["result"]["value"]
        found["wrong"] += [error for event in self.events if (error := error_of(event))]
        return found

    def picture(self, path):
        """Writes the whole page that is open as PNG."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        Path(path).write_bytes(b64decode(shot["data"]))


def error_of(event):
    """What an event of the browser tells of an error, or None."""
    parameters = event.get("params", {})
    if event.get("method") == "Runtime.exceptionThrown":
        return f"throws {parameters['exceptionDetails'].get('exception', {}).get('description')}"
    if event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] == "error":
        return f"tells {[argument.get('value') for argument in parameters['args']]}"
    entry = parameters.get("entry", {})
    return f"logs {entry['text']} {entry.get('url', '')}" if entry.get("level") == "error" else None


@contextlib.contextmanager
def served(folder):
    """Serves a folder on this machine; gives its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def copyfile(self, source, outputfile):
            with contextlib.suppress(ConnectionError):  # the browser left before all was sent
                super().copyfile(source, outputfile)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def wrong_links(found, root, folder):
    """Links within the folder that lead nowhere; ``found``: what LOOK found, by the address of a page."""
    for page, own in found.items():
        for link in own["links"]:
            address, _, fragment = link.partition("#")
            if not address.startswith(root):
                continue
            path = Path(folder) / address.removeprefix(root).partition("?")[0]
            path = path / "index.html" if path.is_dir() else path
            target = found.get(root + path.relative_to(folder).as_posix())
            if not path.is_file():
                yield f"{page} links to {link}, which is not there"
            elif fragment and target is not None and fragment not in target["ids"]:
                yield f"{page} links to {link}, which that page does not have"


def check(path, pictures=None):
    """What is wrong with a page, or with all pages of a folder: a list of sentences."""
    path = Path(path).resolve()
    folder, pages = (path, sorted(path.rglob("*.html"))) if path.is_dir() else (path.parent, [path])
    wrong, found = [], {}
    with served(folder) as root, Browser() as browser:
        for page in pages:
            url = root + page.relative_to(folder).as_posix()
            for name, size in SIZES.items():
                for dark in (False, True) if pictures else (False,):
                    found[url] = browser.open(url, size, dark)
                    wrong += [f"{url} on a {name}: {own}" for own in found[url]["wrong"]]
                    if pictures:
                        label = "-".join(page.relative_to(folder).with_suffix("").parts)
                        browser.picture(Path(pictures) / f"{label}-{name}-{'dark' if dark else 'light'}.png")
        wrong += wrong_links(found, root, folder)
    return list(dict.fromkeys(wrong))


if __name__ == "__main__":
    if CHROMIUM is None:
        print("No page was opened: Chromium is not installed (apt-get install chromium).")
        sys.exit()
    sys.exit("\n".join(check(*sys.argv[1:])) or None)
