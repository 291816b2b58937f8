/** Keyboard movement over the map. */
import type { Cell } from "../../lib/map/model";

const PAGE = 16;

/** The cell after a key press, or null if the key does not move. */
export function moveCursor(key: string, from: Cell, rows: number, cols: number): Cell | null {
  const to = { ...from };
  switch (key) {
    case "ArrowLeft":
      to.expert -= 1;
      break;
    case "ArrowRight":
      to.expert += 1;
      break;
    case "ArrowUp":
      to.row -= 1;
      break;
    case "ArrowDown":
      to.row += 1;
      break;
    case "PageUp":
      to.row -= PAGE;
      break;
    case "PageDown":
      to.row += PAGE;
      break;
    case "Home":
      to.expert = 0;
      break;
    case "End":
      to.expert = cols - 1;
      break;
    default:
      return null;
  }
  to.row = Math.min(rows - 1, Math.max(0, to.row));
  to.expert = Math.min(cols - 1, Math.max(0, to.expert));
  return to;
}
