import { type JSX, useEffect, useRef } from "react";
import { Link } from "wouter";
import { useMediaQuery } from "../../components/useMediaQuery";
import { MapPainter } from "../../lib/map/painter";
import { stretch } from "../../lib/map/view";
import { mapModel } from "./store";
import { useMapTheme, useReducedMotion } from "./theme";
import { useMapRevision } from "./useMapRevision";
import { useSize } from "./useSize";

/** The live map as a strip beside the composer. Off on phones and with reduced motion. */
export function MiniMap(): JSX.Element | null {
  const wide = useMediaQuery("(min-width: 768px)");
  const reduced = useReducedMotion();
  useMapRevision(1000);
  return wide && !reduced && mapModel.size > 0 ? (
    <Strip rows={mapModel.rows} cols={mapModel.cols} />
  ) : null;
}

function Strip({ rows, cols }: { rows: number; cols: number }): JSX.Element {
  const box = useRef<HTMLAnchorElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const painter = useRef<MapPainter>(null);
  const theme = useMapTheme();
  const size = useSize(box);

  useEffect(() => {
    if (!canvas.current) return;
    const created = new MapPainter(canvas.current, mapModel);
    painter.current = created;
    return () => created.dispose();
  }, []);

  useEffect(() => {
    const ratio = window.devicePixelRatio || 1;
    painter.current?.configure(
      {
        mode: "both",
        animate: true,
        theme: theme.colors,
        gridColor: theme.grid,
        markColor: theme.mark,
      },
      stretch(rows, cols, size.width * ratio, size.height * ratio),
    );
  }, [rows, cols, size, theme]);

  return (
    <Link href="/brain" className="minimap" ref={box} aria-label="Live expert map: open Brain">
      <canvas ref={canvas} />
    </Link>
  );
}
