"""A small agent that speaks the Agent Client Protocol over standard input and output.

Its first argument says how it behaves, its second is a folder outside of the tree for what the test looks at.
"""

import json
import os
import signal
import sys
import time

MODE, OUTSIDE = sys.argv[1], sys.argv[2]
SESSION = "s-1"
numbers = iter(range(100, 10_000))


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def receive():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def ask(method, params):
    number = next(numbers)
    send({"id": number, "method": method, "params": {"sessionId": SESSION, **params}})
    while True:
        message = receive()
        if message.get("id") == number and "method" not in message:
            return message.get("result"), message.get("error")


def update(what, **fields):
    send({"method": "session/update", "params": {"sessionId": SESSION, "update": {"sessionUpdate": what, **fields}}})


def say(text):
    update("agent_message_chunk", content={"type": "text", "text": text})


def permission(kind, title, path=None):
    call = {"toolCallId": "c-" + title, "title": title, "kind": kind}
    if path:
        call["locations"] = [{"path": path}]
    options = [
        {"optionId": "never", "name": "Never", "kind": "reject_always"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
        {"optionId": "ever", "name": "Always", "kind": "allow_always"},
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    ]
    result, _ = ask("session/request_permission", {"toolCall": call, "options": options})
    return result["outcome"].get("optionId", result["outcome"]["outcome"])


def work(cwd, capabilities, prompt):
    report = {"capabilities": capabilities, "prompt": prompt, "cwd": os.path.samefile(cwd, os.getcwd())}
    say("I look ")
    say("at it.")
    update("tool_call", toolCallId="c-early", title="early", kind="edit", rawInput={"path": "new.txt"})
    report["permissions"] = {
        "read": permission("read", "a.txt"),
        "edit": permission("edit", "new.txt", os.path.join(cwd, "new.txt")),
        "edit outside": permission("edit", "secret", os.path.join(OUTSIDE, "secret.txt")),
        "execute": permission("execute", "rm -rf /"),
        "fetch": permission("fetch", "https://example.org"),
    }
    read, _ = ask("fs/read_text_file", {"path": os.path.join(cwd, "a.txt"), "line": 2, "limit": 2})
    report["read"] = read["content"]
    _, error = ask("fs/write_text_file", {"path": os.path.join(cwd, "deep/new.txt"), "content": "new\n"})
    report["write"] = error
    os.symlink(os.path.join(OUTSIDE, "secret.txt"), "link")
    refused = {}
    for path in [os.path.join(OUTSIDE, "secret.txt"), cwd + "/../secret.txt", cwd + "/link", cwd + "/.git/config"]:
        for method in ["fs/read_text_file", "fs/write_text_file"]:
            result, error = ask(method, {"path": path, "content": "taken"})
            refused[method + " " + os.path.basename(path)] = error and error["data"]
            assert result is None or not result.get("content"), result
    os.remove("link")
    report["refused"] = refused
    _, error = ask("terminal/create", {"command": "sh"})
    report["terminal"] = error and error["code"]
    ask("fs/write_text_file", {"path": os.path.join(cwd, "report.json"), "content": json.dumps(report)})
    update("tool_call_update", toolCallId="c-early", status="completed")
    update("usage_update", used=10, size=100, cost={"amount": 0.25, "currency": "USD"})
    say("It is done. The key is " + os.environ.get("CARGO_MANIFEST_DIR", "none") + ".")
    usage = {"totalTokens": 70, "inputTokens": 40, "outputTokens": 20, "cachedReadTokens": 10}
    return {"stopReason": "end_turn", "usage": usage}


def hang():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        while True:
            time.sleep(1000)
    with open(os.path.join(OUTSIDE, "pids"), "w") as file:
        file.write(f"{os.getpid()} {child}\n")
    while True:
        message = receive()
        if message.get("method") == "session/cancel":
            with open(os.path.join(OUTSIDE, "cancelled"), "w") as file:
                file.write(message["params"]["sessionId"])


def answer(message, state):
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        state["capabilities"] = params["clientCapabilities"]
        about = {"name": "scripted", "version": "1.2.3"}
        return {"protocolVersion": 1, "agentCapabilities": {}, "agentInfo": about}
    if method == "session/new":
        state["cwd"] = params["cwd"]
        return {"sessionId": SESSION}
    if method != "session/prompt":
        return None
    if MODE == "work":
        return work(state["cwd"], state["capabilities"], params["prompt"][0]["text"])
    if MODE == "hang":
        hang()
    if MODE == "crash":
        sys.stderr.write("Error: HTTP 429 Too Many Requests\n")
        sys.exit(7)
    if MODE == "endless":
        sys.stdout.write("x" * (40 << 20))
        sys.stdout.flush()
        time.sleep(1000)
    if MODE == "says":
        update("tool_call", toolCallId="c-1", title="a.txt", kind="read")
        secret = os.environ["CARGO_MANIFEST_DIR"]
        say("I look around.\nAnd it is still being said " + secret[:9])
        say(secret[9:])
        time.sleep(1000)
    if MODE == "flood":
        for number in range(20):
            update("tool_call", toolCallId=str(number) + "x" * (20 << 20), title="t", kind="read")
        with open("new.txt", "w") as file:
            file.write("new\n")
        say("That was much.")
        return {"stopReason": "end_turn"}
    if MODE == "greedy":
        for number in range(30):
            path = os.path.join(state["cwd"], "large.txt")
            send({"id": number, "method": "fs/read_text_file", "params": {"sessionId": SESSION, "path": path}})
        time.sleep(1000)
    if MODE == "ask":
        say("I looked.\nREFILE: ask Which port?")
        return {"stopReason": "end_turn"}
    with open("new.txt", "w") as file:
        file.write("new\n")
    say("As far as I came.")
    return {"stopReason": MODE}


state = {}
while True:
    message = receive()
    if "id" not in message or "method" not in message:
        continue
    if MODE == "auth" and message["method"] == "session/new":
        send({"id": message["id"], "error": {"code": -32000, "message": "Authentication required"}})
        continue
    send({"id": message["id"], "result": answer(message, state)})
