import { expect, it } from "vitest";
import { ago, DASH, gigabytes, integer, milliseconds, percent, rate } from "./format";

it("shows a dash for what the engine did not say", () => {
  for (const show of [integer, rate, percent, milliseconds]) {
    expect(show(null)).toBe(DASH);
    expect(show(undefined)).toBe(DASH);
    expect(show(0)).not.toBe(DASH);
  }
});

it("chooses digits by size", () => {
  expect(rate(7.25)).toMatch(/^7\.[23]$/);
  expect(rate(412.4)).toBe("412");
  expect(integer(19456)).toBe("19,456");
  expect(milliseconds(340)).toBe("340 ms");
  expect(milliseconds(2340)).toBe("2.3 s");
  expect(gigabytes(0.007)).toBe("7 MB");
  expect(gigabytes(23.5)).toBe("23.5 GB");
  expect(ago(400)).toBe("0.4 s ago");
  expect(ago(120_000)).toBe("2 min ago");
});
