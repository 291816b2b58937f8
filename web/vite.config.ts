import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

// A development server talks to an engine that runs on the usual port; the built page never needs this.
const engine = process.env.COLIBRI_DEV_SERVER ?? "http://127.0.0.1:8000";
const proxied = ["/api", "/v1", "/experts", "/health", "/profile"];

export default defineConfig({
  plugins: [react()],
  server: { proxy: Object.fromEntries(proxied.map((path) => [path, engine])) },
  build: {
    outDir: "dist",
    // Inlined data URLs would need a looser content security policy for scripts and fonts.
    assetsInlineLimit: 0,
    // Browsers that lack module preload lack other things this page needs; the polyfill is only weight.
    modulePreload: { polyfill: false },
  },
  test: {
    environment: "happy-dom",
    include: ["src/**/*.test.{ts,tsx}"],
  },
});
