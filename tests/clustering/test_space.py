import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.preprocessing import RobustScaler, StandardScaler

from phenogroups.clustering.space import fit_space


@pytest.fixture
def cohort():
    g = torch.Generator().manual_seed(0)
    z = torch.randn(200, 6, generator=g) * torch.tensor([1.0, 2, 3, 4, 5, 6]) + 3
    is_patient = torch.arange(200) < 120
    z[is_patient, 0] += 4  # how ill they look
    return z, is_patient


@pytest.mark.parametrize(("scaler", "theirs"), [("standard", StandardScaler()), ("robust", RobustScaler())])
def test_scaling_is_scikit_learns_fitted_on_patients(cohort, scaler, theirs):
    z, is_patient = cohort
    expected = theirs.fit(z[is_patient].numpy()).transform(z.numpy())
    torch.testing.assert_close(
        fit_space(z, is_patient, scaler=scaler)(z), torch.as_tensor(expected), rtol=1e-4, atol=1e-4
    )


def test_no_scaling_is_the_identity(cohort):
    z, is_patient = cohort
    torch.testing.assert_close(fit_space(z, is_patient, scaler="none")(z), z)


def test_severity_is_removed(cohort):
    z, is_patient = cohort
    space = fit_space(z, is_patient, remove_severity=True)
    torch.testing.assert_close(space.severity.norm(), torch.tensor(1.0))
    seen = space(z)
    torch.testing.assert_close(seen[is_patient].mean(0), seen[~is_patient].mean(0), rtol=0, atol=1e-4)


def test_winsorising_limits_every_coordinate(cohort):
    z, is_patient = cohort
    assert fit_space(z, is_patient, winsorise=2.0)(z * 10).abs().max() <= 2


def test_components_are_those_of_pca_up_to_sign(cohort):
    z, is_patient = cohort
    space = fit_space(z, is_patient, components=3)
    scaled = ((z - space.center) / space.scale).numpy()
    axes = PCA(3).fit(scaled[is_patient.numpy()]).components_
    torch.testing.assert_close((space.basis.T @ torch.as_tensor(axes).T).abs(), torch.eye(3), rtol=0, atol=1e-3)


def test_a_silent_unit_stays_finite(cohort):
    z, is_patient = cohort
    z[:, 3] = 7.0
    for scaler in ("standard", "robust"):
        assert torch.isfinite(fit_space(z, is_patient, scaler=scaler)(z)).all()
