import { type JSX, useId, useState } from "react";
import { useEngine } from "../engine/store";
import { setParameters, useChat } from "./store";

/** An empty field means the default, which is shown in it if it is a number. */
function NumberField({
  label,
  note,
  value,
  fallback = null,
  min,
  above,
  max,
  step,
  onChange,
}: {
  label: string;
  note: string;
  value: number | null;
  fallback?: number | null | undefined;
  min: number;
  /** `min` itself is not allowed. */
  above?: boolean;
  max?: number;
  step: number;
  onChange: (value: number | null) => void;
}): JSX.Element {
  const id = useId();
  // What is being typed may not be allowed yet: the 0 of 0.9.
  const [typed, setTyped] = useState<string | null>(null);
  const allowed = (n: number): boolean =>
    (above ? n > min : n >= min) && (max === undefined || n <= max);
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <div className="field-line">
        <input
          id={id}
          type="number"
          inputMode="decimal"
          min={min}
          max={max}
          step={step}
          value={typed ?? value ?? ""}
          placeholder={fallback === null ? "" : String(fallback)}
          aria-invalid={typed !== null && typed !== "" && !allowed(Number(typed))}
          aria-describedby={`${id}-note`}
          onChange={(event) => {
            const text = event.target.value;
            setTyped(text);
            if (text === "") {
              if (!event.target.validity.badInput) onChange(null);
            } else if (allowed(Number(text))) onChange(Number(text));
          }}
          onBlur={() => setTyped(null)}
        />
        <button
          type="button"
          className="button button-quiet"
          disabled={value === null}
          onClick={() => onChange(null)}
        >
          Reset
        </button>
      </div>
      <p id={`${id}-note`} className="muted">
        {value === null ? note : "Set here"}
      </p>
    </div>
  );
}

export function ParametersForm(): JSX.Element {
  const parameters = useChat((chat) => chat.conversation.parameters);
  const model = useEngine((store) => store.engine?.generation);
  const system = useId();
  return (
    <form className="parameters" onSubmit={(event) => event.preventDefault()}>
      <NumberField
        label="Temperature"
        note="Default from the model"
        value={parameters.temperature}
        fallback={model?.temperature}
        min={0}
        max={2}
        step={0.1}
        onChange={(value) => setParameters({ temperature: value })}
      />
      <NumberField
        label="Top-p"
        note="Default from the model"
        value={parameters.topP}
        fallback={model?.top_p}
        min={0}
        above
        max={1}
        step={0.05}
        onChange={(value) => setParameters({ topP: value })}
      />
      <NumberField
        label="Max tokens"
        note="Default: up to the end of the context"
        value={parameters.maxTokens}
        min={1}
        step={1}
        onChange={(value) => setParameters({ maxTokens: value && Math.floor(value) })}
      />
      <NumberField
        label="Seed"
        note="Default: a new one each time"
        value={parameters.seed}
        min={0}
        step={1}
        onChange={(value) => setParameters({ seed: value && Math.floor(value) })}
      />
      <div className="field">
        <label htmlFor={system}>System prompt</label>
        <textarea
          id={system}
          rows={5}
          value={parameters.system}
          placeholder="None"
          onChange={(event) => setParameters({ system: event.target.value })}
        />
      </div>
      <p className="muted">These belong to this chat; a new chat starts with the same values.</p>
    </form>
  );
}
