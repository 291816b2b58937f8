/** The few pictograms of the page, drawn here so that no icon font or package is loaded. */
import type { JSX, ReactNode } from "react";

function Icon({ children }: { children: ReactNode }): JSX.Element {
  return (
    <svg
      width="18"
      height="18"
      viewBox="0 0 18 18"
      fill="none"
      stroke="currentColor"
      strokeWidth="1.5"
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
    >
      {children}
    </svg>
  );
}

export const ChatIcon = (): JSX.Element => (
  <Icon>
    <path d="M3 4.5h12v8H8.5L5 15.2v-2.7H3z" />
  </Icon>
);

export const BrainIcon = (): JSX.Element => (
  <Icon>
    <path d="M3 3h3v3H3zM7.5 3h3v3h-3zM12 3h3v3h-3zM3 7.5h3v3H3zM12 7.5h3v3h-3zM3 12h3v3H3zM7.5 12h3v3h-3zM12 12h3v3h-3z" />
    <path d="M7.5 7.5h3v3h-3z" fill="currentColor" />
  </Icon>
);

export const SendIcon = (): JSX.Element => (
  <Icon>
    <path d="M9 15V3.5M4.2 8.2 9 3.4l4.8 4.8" />
  </Icon>
);

export const StopIcon = (): JSX.Element => (
  <Icon>
    <rect x="4.5" y="4.5" width="9" height="9" rx="1.5" fill="currentColor" stroke="none" />
  </Icon>
);

export const CopyIcon = (): JSX.Element => (
  <Icon>
    <rect x="6.5" y="6.5" width="8" height="8" rx="1.5" />
    <path d="M11.5 3.5h-6a2 2 0 0 0-2 2v6" />
  </Icon>
);

export const CheckIcon = (): JSX.Element => (
  <Icon>
    <path d="m3.5 9.5 3.6 3.6 7.4-8" />
  </Icon>
);

export const AgainIcon = (): JSX.Element => (
  <Icon>
    <path d="M14.5 9a5.5 5.5 0 1 1-1.7-4M14.5 2.5v3h-3" />
  </Icon>
);

export const PlusIcon = (): JSX.Element => (
  <Icon>
    <path d="M9 3.5v11M3.5 9h11" />
  </Icon>
);

export const SlidersIcon = (): JSX.Element => (
  <Icon>
    <path d="M3 5.5h6M13 5.5h2M3 12.5h2M9 12.5h6" />
    <circle cx="11" cy="5.5" r="1.8" />
    <circle cx="7" cy="12.5" r="1.8" />
  </Icon>
);

export const ListIcon = (): JSX.Element => (
  <Icon>
    <path d="M3 4.5h12M3 9h12M3 13.5h8" />
  </Icon>
);

export const TrashIcon = (): JSX.Element => (
  <Icon>
    <path d="M3.5 5h11M7 5V3.5h4V5M5 5l.6 9.5h6.8L13 5" />
  </Icon>
);

export const CloseIcon = (): JSX.Element => (
  <Icon>
    <path d="m4.5 4.5 9 9M13.5 4.5l-9 9" />
  </Icon>
);
