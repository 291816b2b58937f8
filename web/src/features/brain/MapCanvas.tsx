import {
  type CSSProperties,
  type JSX,
  type KeyboardEvent,
  type MouseEvent,
  useEffect,
  useMemo,
  useRef,
  useState,
} from "react";
import type { Cell } from "../../lib/map/model";
import { MapPainter } from "../../lib/map/painter";
import { hitTest, type Layout, labelStep, largestFit } from "../../lib/map/view";
import { useEngine } from "../engine/store";
import { moveCursor } from "./cursor";
import { describeCell, layerName, summary } from "./describe";
import { mapModel, useBrain } from "./store";
import { useMapTheme, useReducedMotion } from "./theme";
import { useSize, useWindowHeight } from "./useSize";

/** Left of the map, for layer numbers, in CSS pixels. */
const AXIS_LEFT = 44;
/** Room for the focus ring at the right edge. */
const RING = 4;
/** The map may take this much of the window's height, so that the tier bar below stays in sight. */
const HEIGHT_SHARE = 0.54;
const MIN_HEIGHT = 200;
const MAX_HEIGHT = 760;
const MIN_CELL = 3;
/** A cursor in motion says nothing; once it rests, its cell is announced. */
const ANNOUNCE_MS = 400;

function spot(layout: Layout, cell: Cell): CSSProperties {
  const percent = (share: number): string => `${100 * share}%`;
  return {
    left: percent(cell.expert / layout.cols),
    top: percent(cell.row / layout.rows),
    width: percent(1 / layout.cols),
    height: percent(1 / layout.rows),
  };
}

function Axes({ layout, ratio }: { layout: Layout; ratio: number }): JSX.Element {
  const layers = useEngine((engine) => engine.engine?.layers);
  const rowStep = labelStep(layout.rows, layout.cellHeight / ratio, 18);
  const colStep = labelStep(layout.cols, layout.cellWidth / ratio, 34);
  const marks = (count: number, step: number): number[] =>
    Array.from({ length: Math.ceil(count / step) }, (_, i) => i * step);
  return (
    <>
      <div className="axis axis-rows" aria-hidden="true">
        {marks(layout.rows, rowStep).map((row) => (
          <span key={row} style={{ top: `${(100 * (row + 0.5)) / layout.rows}%` }}>
            {layerName(layers, row).replace("row ", "")}
          </span>
        ))}
      </div>
      <div className="axis axis-cols" aria-hidden="true">
        {marks(layout.cols, colStep).map((col) => (
          <span key={col} style={{ left: `${(100 * (col + 0.5)) / layout.cols}%` }}>
            {col}
          </span>
        ))}
      </div>
    </>
  );
}

export function MapCanvas({ rows, cols }: { rows: number; cols: number }): JSX.Element {
  const space = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const painter = useRef<MapPainter>(null);
  const { mode, cursor, selected } = useBrain();
  const layers = useEngine((engine) => engine.engine?.layers);
  const theme = useMapTheme();
  const reduced = useReducedMotion();
  const { width } = useSize(space);
  const height = useWindowHeight() * HEIGHT_SHARE;
  const ratio = window.devicePixelRatio || 1;
  const [spoken, setSpoken] = useState("");
  const byKeyboard = useRef(false);

  const layout = useMemo(
    () =>
      largestFit(rows, cols, {
        width: Math.max(0, width - AXIS_LEFT - RING),
        height: Math.min(MAX_HEIGHT, Math.max(MIN_HEIGHT, height)),
        ratio,
        minCell: MIN_CELL,
      }),
    [rows, cols, width, height, ratio],
  );

  useEffect(() => {
    if (!canvas.current) return;
    const created = new MapPainter(canvas.current, mapModel);
    painter.current = created;
    return () => created.dispose();
  }, []);

  useEffect(() => {
    if (width === 0) return;
    painter.current?.configure(
      {
        mode,
        animate: !reduced,
        theme: theme.colors,
        gridColor: theme.grid,
        markColor: theme.mark,
      },
      layout,
    );
  }, [layout, mode, reduced, theme, width]);

  useEffect(() => {
    if (!cursor || !byKeyboard.current) return;
    const timer = setTimeout(() => setSpoken(describeCell(mapModel, layers, cursor)), ANNOUNCE_MS);
    return () => clearTimeout(timer);
  }, [cursor, layers]);

  const cellAt = (event: MouseEvent): Cell | null => {
    const box = event.currentTarget.getBoundingClientRect();
    return hitTest(
      layout,
      (event.clientX - box.left) / box.width,
      (event.clientY - box.top) / box.height,
    );
  };

  const onKey = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const from = cursor ?? selected ?? { row: 0, expert: 0 };
    if (event.key === "Enter") {
      useBrain.setState({ selected: from, cursor: from });
      event.preventDefault();
      return;
    }
    const to = moveCursor(event.key, from, rows, cols);
    if (!to) return;
    event.preventDefault();
    byKeyboard.current = true;
    // The first key press only shows where the cursor is.
    useBrain.setState({ cursor: cursor ? to : from });
  };

  return (
    <div className="map-space" ref={space}>
      <div
        className="map-frame"
        style={{ width: layout.width / ratio, height: layout.height / ratio }}
      >
        <Axes layout={layout} ratio={ratio} />
        {/* The canvas is one focusable picture; cells are reached with the arrow keys. */}
        {/* biome-ignore-start lint/a11y/noNoninteractiveElementInteractions: keys move the cursor inside */}
        {/* biome-ignore-start lint/a11y/noNoninteractiveElementToInteractiveRole: see above */}
        <canvas
          ref={canvas}
          className="map-canvas"
          tabIndex={0}
          role="img"
          aria-label={`Expert map, ${summary(mapModel)}. Arrow keys move a cursor, Enter keeps a cell.`}
          aria-describedby="map-spoken"
          onKeyDown={onKey}
          onMouseMove={(event) => {
            byKeyboard.current = false;
            useBrain.setState({ cursor: cellAt(event) });
          }}
          onMouseLeave={() => useBrain.setState({ cursor: null })}
          onClick={(event) => useBrain.setState({ selected: cellAt(event) })}
        />
        {/* biome-ignore-end lint/a11y/noNoninteractiveElementToInteractiveRole: see above */}
        {/* biome-ignore-end lint/a11y/noNoninteractiveElementInteractions: see above */}
        {selected && <span className="map-selected" style={spot(layout, selected)} />}
        {cursor && <span className="map-cursor" style={spot(layout, cursor)} />}
      </div>
      <p id="map-spoken" className="hidden" aria-live="polite">
        {spoken}
      </p>
    </div>
  );
}
