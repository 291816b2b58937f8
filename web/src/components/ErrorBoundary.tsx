import { Component, type ReactNode } from "react";

/** A defect in one view must leave a page that says so, not a blank one. */
export class ErrorBoundary extends Component<{ children: ReactNode }, { error: Error | null }> {
  override state: { error: Error | null } = { error: null };

  static getDerivedStateFromError(error: unknown): { error: Error } {
    return { error: error instanceof Error ? error : new Error(String(error)) };
  }

  override render(): ReactNode {
    if (!this.state.error) return this.props.children;
    return (
      <main className="crash">
        <h1>This page has a defect</h1>
        <p>{this.state.error.message}</p>
        <p>Conversations are stored and survive a reload.</p>
        <button type="button" className="button" onClick={() => window.location.reload()}>
          Reload
        </button>
      </main>
    );
  }
}
