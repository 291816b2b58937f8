import { type JSX, useId } from "react";
import { useEngine } from "../engine/store";
import { setParameters, useChat } from "./store";

/** An empty field means the model's default, which is shown in it. */
function NumberField({
  label,
  note,
  value,
  placeholder,
  min,
  max,
  step,
  onChange,
}: {
  label: string;
  note: string;
  value: number | null;
  placeholder: string;
  min: number;
  max?: number;
  step: number;
  onChange: (value: number | null) => void;
}): JSX.Element {
  const id = useId();
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
          value={value ?? ""}
          placeholder={placeholder}
          aria-describedby={`${id}-note`}
          onChange={(event) => {
            const text = event.target.value;
            const parsed = Number(text);
            if (text === "") onChange(null);
            else if (parsed >= min && (max === undefined || parsed <= max)) onChange(parsed);
          }}
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
  const temperature = useEngine((store) => store.engine?.generation.temperature ?? null);
  const system = useId();
  return (
    <form className="parameters" onSubmit={(event) => event.preventDefault()}>
      <NumberField
        label="Temperature"
        note="Default from model"
        value={parameters.temperature}
        placeholder={temperature === null ? "model default" : String(temperature)}
        min={0}
        max={2}
        step={0.1}
        onChange={(value) => setParameters({ temperature: value })}
      />
      <NumberField
        label="Max tokens"
        note="Default: up to the end of the context"
        value={parameters.maxTokens}
        placeholder="no limit set"
        min={1}
        step={1}
        onChange={(value) => setParameters({ maxTokens: value && Math.floor(value) })}
      />
      <NumberField
        label="Seed"
        note="Default: a new one each time"
        value={parameters.seed}
        placeholder="random"
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
