import * as fc from "fast-check";
import { expect, it } from "vitest";
import { moveCursor } from "./cursor";

it("moves by cell, by page and to the row's ends", () => {
  const from = { row: 20, expert: 5 };
  expect(moveCursor("ArrowRight", from, 76, 256)).toEqual({ row: 20, expert: 6 });
  expect(moveCursor("PageUp", from, 76, 256)).toEqual({ row: 4, expert: 5 });
  expect(moveCursor("End", from, 76, 256)).toEqual({ row: 20, expert: 255 });
  expect(moveCursor("x", from, 76, 256)).toBeNull();
});

it("never leaves the map", () => {
  const keys = [
    "ArrowLeft",
    "ArrowRight",
    "ArrowUp",
    "ArrowDown",
    "PageUp",
    "PageDown",
    "Home",
    "End",
  ];
  fc.assert(
    fc.property(
      fc.array(fc.constantFrom(...keys)),
      fc.integer({ min: 1, max: 80 }),
      fc.integer({ min: 1, max: 256 }),
      (presses, rows, cols) => {
        let cell = { row: 0, expert: 0 };
        for (const key of presses) {
          cell = moveCursor(key, cell, rows, cols) ?? cell;
          expect(cell.row >= 0 && cell.row < rows).toBe(true);
          expect(cell.expert >= 0 && cell.expert < cols).toBe(true);
        }
      },
    ),
  );
});
