// The login by token.

import { useState } from "preact/hooks";
import { login, messageOf } from "../api";
import { sentence } from "../format";
import { needsLogin, start, useStore } from "../store";
import { Icon } from "../ui/icons";

export function Login() {
  const [token, setToken] = useState("");
  const [error, setError] = useState("");
  const asked = useStore(needsLogin);
  const why = error || asked?.why;
  const bad = error !== "" || asked?.bad;
  const submit = async (event: Event) => {
    event.preventDefault();
    try {
      await login(token.trim());
      await start();
    } catch (e) {
      setError(sentence(messageOf(e)));
    }
  };
  return (
    <main class="login">
      <form class="card" onSubmit={submit}>
        <h1 class="brand" style={{ padding: "0 0 14px", margin: 0 }}>
          <Icon name="brand" size={22} />
          <span>Millrace</span>
        </h1>
        {why && (
          <div class={`notice round${bad ? " bad" : ""}`} role={bad ? "alert" : "status"}>
            {why}
          </div>
        )}
        <label for="token">Token</label>
        <input
          id="token"
          class="field"
          type="password"
          autoComplete="current-password"
          value={token}
          onInput={(e) => setToken(e.currentTarget.value)}
        />
        <button class="button primary" type="submit" disabled={!token.trim()}>
          Log in
        </button>
        <p class="soft">
          <code>millrace up</code> and <code>millrace scheduler</code> print the token, and the
          scheduler file has it. A link that ends with <code>#token=TOKEN</code> logs in by itself.
        </p>
      </form>
    </main>
  );
}
