import type { JSX } from "react";
import { Words } from "../../components/Words";
import { useEngine } from "./store";

/** Why there will be no answers, in the engine's own words and with its advice. */
export function FailureNotice(): JSX.Element | null {
  const engine = useEngine((store) => store.engine);
  if (engine?.state !== "failed") return null;
  return (
    <div className="banner banner-bad" role="alert">
      <p>
        <strong>The engine failed.</strong> {engine.reason && <Words text={engine.reason} />}
      </p>
      {engine.hint && (
        <p>
          <Words text={engine.hint} />
        </p>
      )}
    </div>
  );
}
