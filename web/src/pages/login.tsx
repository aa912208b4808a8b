// The login by token.

import { useState } from "preact/hooks";
import { login, messageOf } from "../api";
import { start } from "../store";
import { Icon } from "../ui/icons";

export function Login() {
  const [token, setToken] = useState("");
  const [error, setError] = useState("");
  const submit = async (event: Event) => {
    event.preventDefault();
    try {
      await login(token.trim());
      await start();
    } catch (e) {
      setError(messageOf(e));
    }
  };
  return (
    <main class="login">
      <form class="card" onSubmit={submit}>
        <h1 class="brand" style={{ padding: "0 0 14px", margin: 0 }}>
          <Icon name="brand" size={22} />
          <span>Millrace</span>
        </h1>
        {error && (
          <div class="notice bad round" role="alert">
            {error}
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
      </form>
    </main>
  );
}
